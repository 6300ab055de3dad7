"""framefleet: caption every clip of a large video collection with a vision-language model, and find clips again.

Importing this package is free: names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from framefleet._version import __version__

if TYPE_CHECKING:
    from framefleet.caption.job import caption
    from framefleet.decode.decoder import DecodedFrames
    from framefleet.decode.session import decode
    from framefleet.media.info import StreamInfo
    from framefleet.media.probe import probe
    from framefleet.search.searcher import search
    from framefleet.store.export import export
    from framefleet.store.sink import open_store
    from framefleet.store.where import Where

_LAZY = {
    "DecodedFrames": "framefleet.decode.decoder",
    "StreamInfo": "framefleet.media.info",
    "Where": "framefleet.store.where",
    "caption": "",
    "decode": "",
    "export": "framefleet.store.export",
    "open_store": "framefleet.store.sink",
    "probe": "framefleet.media.probe",
    "errors": "",
    "search": "",
}

__all__ = [
    "DecodedFrames",
    "StreamInfo",
    "Where",
    "__version__",
    "caption",
    "decode",
    "errors",
    "export",
    "open_store",
    "probe",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _LAZY[name]
    return getattr(import_module(module), name) if module else import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
