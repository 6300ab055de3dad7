"""What differs between versions of vLLM, in one table, and what the running one has.

Read in the wheels of vLLM 0.25.1, 0.26.0, 0.32.0 and 0.33.0: they name and call alike what the plugin uses
(`VIDEO_LOADER_REGISTRY.register(name, video_processor=...)`, `VideoMediaIO.merge_kwargs`, `get_mm_gpu_ipc_pool`,
`InputProcessingContext.call_hf_processor`). Nothing of vLLM is imported before it is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VllmFacts:
    """What holds from one version of vLLM on."""

    since: Version
    counts_hw_decoders: bool
    """Its reservation grows with `hw_decoders`; before, one decoder is counted."""
    counts_max_size: bool
    """Its reservation grows with `max_width` and `max_height`."""


TABLE = (
    VllmFacts((0, 25, 1), counts_hw_decoders=False, counts_max_size=False),
    VllmFacts((0, 27, 1), counts_hw_decoders=True, counts_max_size=False),
    VllmFacts((0, 33, 0), counts_hw_decoders=True, counts_max_size=True),
)
NEWEST_KNOWN = (0, 33)


def parse_version(text: str) -> Version:
    """`"0.32.0+cpu"` to (0, 32, 0). A version that does not begin with two numbers is one of a working copy: (0, 0, 0).

    Pure.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def facts_of(version: Version) -> VllmFacts | None:
    """The last row that holds for `version`; None for one before the table. Pure."""
    rows = [row for row in TABLE if row.since <= version]
    return rows[-1] if rows else None


def facts_here() -> VllmFacts:
    """Of the vLLM of this process; the newest known where it is unknown."""
    from vllm.version import __version__

    return facts_of(parse_version(__version__)) or TABLE[-1]


def gpu_pool() -> Any:
    """vLLM's pool of GPU memory for this API server's decoders; None where none was asked for."""
    from vllm.multimodal.gpu_ipc_memory import get_mm_gpu_ipc_pool

    return get_mm_gpu_ipc_pool()
