"""What decoding on the GPU in vLLM's API servers takes from the KV cache, before vLLM starts. Pure arithmetic.

Rule from vLLM 0.33 `multimodal/gpu_ipc_memory.py` `reserve_mm_ipc_gpu_memory`. The budget of raw frames is shared by
the API servers; decoders and the CUDA context (1.8 GiB) come once for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from framefleet.errors import ConfigError
from framefleet.units import MIB, format_bytes
from framefleet.vllm_plugin.compat import TABLE, VllmFacts

CONTEXT_BYTES = int(1.8 * 1024 * MIB)
LEAST_DECODER_BYTES = 128 * MIB
CACHED_DECODERS = 2
"""Decoders that PyNvVideoCodec keeps in one of vLLM's slots."""


@dataclass(frozen=True, slots=True)
class KvReservation:
    """Bytes that vLLM leaves out of its KV cache."""

    budget_bytes: int
    """`--mm-ipc-gpu-memory-gb`, of all API servers together."""
    decoders_bytes: int
    """Of one API server."""
    context_bytes: int
    """Of one API server."""
    api_servers: int

    @property
    def total_bytes(self) -> int:
        """What the KV cache really loses."""
        return self.budget_bytes + self.api_servers * (self.decoders_bytes + self.context_bytes)

    @property
    def share_bytes(self) -> int:
        """The budget of one API server; a clip that needs more is refused."""
        return self.budget_bytes // self.api_servers

    def __str__(self) -> str:
        total, budget = format_bytes(self.total_bytes), format_bytes(self.budget_bytes)
        each = f"{format_bytes(self.decoders_bytes)} decoders + {format_bytes(self.context_bytes)} CUDA context"
        return (
            f"decoding takes {total} from the KV cache: {budget} budget"
            f" + {self.api_servers} API servers x ({each}); one server's share is {format_bytes(self.share_bytes)}"
        )


def kv_reservation(
    budget_bytes: int,
    *,
    decodes_on_gpu: bool,
    api_servers: int = 1,
    hw_decoders: int = 2,
    max_size: tuple[int, int] | None = None,
    facts: VllmFacts = TABLE[-1],
) -> KvReservation:
    """For a server started so; `max_size` is (max_width, max_height). Raises ConfigError for less than nothing.

    Older versions count one decoder, or its least size, whatever is asked (`facts`).
    """
    for name, value, least in (
        ("budget", budget_bytes, 0),
        ("API servers", api_servers, 1),
        ("decoders", hw_decoders, 1),
    ):
        if value < least:
            raise ConfigError(f"too few {name}", given=str(value), allowed=f"{least} up")
    if not decodes_on_gpu:
        return KvReservation(budget_bytes, 0, 0, api_servers)
    width, height = max_size if max_size and facts.counts_max_size else (0, 0)
    decoder_bytes = max(LEAST_DECODER_BYTES, width * height * 3 * CACHED_DECODERS)
    decoders = hw_decoders if facts.counts_hw_decoders else 1
    return KvReservation(budget_bytes, decoders * decoder_bytes, CONTEXT_BYTES, api_servers)
