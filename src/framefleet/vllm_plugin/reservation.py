"""What decoding on the GPU takes from the KV cache, before vLLM starts. Pure arithmetic.

Rule from vLLM 0.33 `multimodal/gpu_ipc_memory.py` `reserve_mm_ipc_gpu_memory`. The budget of raw frames is shared by
the API servers; decoders and the CUDA context (1.8 GiB) come once for each of them. A decode service takes its
context and its decoders once, however many API servers there are; vLLM is told of it by `--mm-ipc-gpu-memory-gb`.

    python -m framefleet.vllm_plugin.reservation --mm-ipc-gpu-memory-gb 2 --api-server-count 4 --hw-decoders 2
    python -m framefleet.vllm_plugin.reservation --service
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from framefleet.decode.backends.pynvvideocodec import DEFAULT_BUDGET_BYTES
from framefleet.errors import ConfigError
from framefleet.units import GIB, MIB, format_bytes, parse_bytes
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


@dataclass(frozen=True, slots=True)
class ServiceReservation:
    """Bytes of one GPU that a decode service takes."""

    decoders_bytes: int
    """Its `--gpu-budget`."""
    context_bytes: int = CONTEXT_BYTES

    @property
    def total_bytes(self) -> int:
        """What vLLM must leave alone."""
        return self.decoders_bytes + self.context_bytes

    @property
    def mm_ipc_gpu_memory_gb(self) -> float:
        """The value for vLLM's `--mm-ipc-gpu-memory-gb` (GiB): it leaves so much out of its KV cache."""
        return math.ceil(self.total_bytes / GIB * 10) / 10

    def __str__(self) -> str:
        parts = f"{format_bytes(self.decoders_bytes)} decoders + {format_bytes(self.context_bytes)} CUDA context"
        flag = f"--mm-ipc-gpu-memory-gb {self.mm_ipc_gpu_memory_gb:g}"
        return f"the decode service takes {format_bytes(self.total_bytes)} of the GPU: {parts}; give vLLM {flag}"


def service_reservation(gpu_budget_bytes: int = DEFAULT_BUDGET_BYTES) -> ServiceReservation:
    """For a service with this `--gpu-budget`. Raises ConfigError for nothing."""
    if gpu_budget_bytes < 1:
        raise ConfigError("too small a GPU budget", given=str(gpu_budget_bytes), allowed="1 byte up")
    return ServiceReservation(gpu_budget_bytes)


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


def main(arguments: list[str] | None = None) -> None:
    """Print the reservation of a server, or of a decode service, before it is started."""
    parser = argparse.ArgumentParser(prog="python -m framefleet.vllm_plugin.reservation", description=main.__doc__)
    parser.add_argument("--service", action="store_true", help="of a decode service with --gpu")
    parser.add_argument("--gpu-budget", type=parse_bytes, default=DEFAULT_BUDGET_BYTES, help="the service's")
    parser.add_argument("--mm-ipc-gpu-memory-gb", type=float, default=0.0, help="vLLM's, for decoding in its servers")
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--hw-decoders", type=int, default=2)
    asked = parser.parse_args(arguments)
    if asked.service:
        print(service_reservation(asked.gpu_budget))  # noqa: T201 - the answer
        return
    budget = int(asked.mm_ipc_gpu_memory_gb * GIB)
    count, decoders = asked.api_server_count, asked.hw_decoders
    print(kv_reservation(budget, decodes_on_gpu=True, api_servers=count, hw_decoders=decoders))  # noqa: T201


if __name__ == "__main__":
    main()
