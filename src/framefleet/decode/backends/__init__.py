"""The decode backends by name. A new one is one file here and one line below; others come by entry point."""

from __future__ import annotations

from framefleet.registry import Registry

BACKENDS = Registry(
    "decode backend",
    "framefleet.decode_backends",
    {
        "pyav": "framefleet.decode.backends.pyav:PyAvBackend",
        "torchcodec": "framefleet.decode.backends.torchcodec:TorchCodecBackend",
        "opencv": "framefleet.decode.backends.opencv:OpenCvBackend",
        "pynvvideocodec": "framefleet.decode.backends.pynvvideocodec:shared_backend",
        "deepstream": "framefleet.decode.backends.deepstream:shared_backend",
        "fake": "framefleet.decode.backends.fake:FakeBackend",
    },
)

AUTO_ORDER = ("pyav", "torchcodec", "opencv")
"""What `auto` tries, first choice first. Backends on NVDEC belong before `pyav`; `fake` is never chosen by itself."""
