"""A small vLLM: its version, its registry of loaders and its VideoMediaIO, as in the wheels of 0.25.1 to 0.33.0."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from framefleet.vllm_plugin import loader


class Registry:
    """As `VideoLoaderRegistry`."""

    def __init__(self) -> None:
        self.name2class: dict[str, type] = {"opencv": object, "qwen3_vl": object}
        self.processor2backend = {"Qwen3VLVideoProcessor": "qwen3_vl", "Qwen2VLVideoProcessor": "qwen2_vl"}

    def register(self, name, *, video_processor=None, requires_gpu=False):
        names = (video_processor,) if isinstance(video_processor, str) else video_processor or ()

        def wrap(loader):
            self.name2class[name] = loader
            self.processor2backend.update(dict.fromkeys(names, name))
            return loader

        return wrap

    def load(self, name):
        return self.name2class[name]()


def media_io(registry: Registry) -> type:
    """A fresh `VideoMediaIO`, whose class the plugin changes."""

    class MediaIO:
        @classmethod
        def merge_kwargs(cls, default_kwargs, runtime_kwargs):
            return {**(default_kwargs or {}), **(runtime_kwargs or {})}

    class VideoMediaIO(MediaIO):
        @classmethod
        def merge_kwargs(cls, default_kwargs, runtime_kwargs):
            merged = super().merge_kwargs(default_kwargs, runtime_kwargs)
            if runtime_kwargs and "fps" in runtime_kwargs:
                merged.pop("num_frames", None)
            return merged

        def __init__(self, num_frames=32, **kwargs):
            self.num_frames = num_frames
            self.video_loader = registry.load(kwargs.pop("video_backend", None) or "opencv")
            self.kwargs = kwargs

        def load_bytes(self, data):
            return self.video_loader.load_bytes(data, num_frames=self.num_frames, **self.kwargs)

    return VideoMediaIO


class FakeVllm:
    """The modules of vLLM that the plugin imports, installed for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        self.registry = Registry()
        self.video_io = media_io(self.registry)
        self.gpu_pool = None
        modules = {
            "vllm": {},
            "vllm.version": {"__version__": version},
            "vllm.multimodal": {},
            "vllm.multimodal.video": {"VIDEO_LOADER_REGISTRY": self.registry},
            "vllm.multimodal.gpu_ipc_memory": {"get_mm_gpu_ipc_pool": lambda: self.gpu_pool},
            "vllm.multimodal.media": {},
            "vllm.multimodal.media.video": {"VideoMediaIO": self.video_io},
        }
        for name, attributes in modules.items():
            module = ModuleType(name)
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, name, module)

    def fetch(self, data: bytes, start: dict, request: dict | None = None, processor: str = "Qwen3VLVideoProcessor"):
        """One video of a request, on the way that vLLM's `MediaConnector.fetch_video` takes."""
        options = self.video_io.merge_kwargs(start, request)
        if "video_backend" not in options and (name := self.registry.processor2backend.get(processor)):
            options["video_backend"] = name
        return self.video_io(**options).load_bytes(data)


@pytest.fixture(autouse=True)
def _fresh_process():
    """As in a process that has decoded nothing yet."""
    loader._decoding.cache_clear()
    yield
    loader._decoding.cache_clear()


@pytest.fixture
def make_vllm(monkeypatch):
    """Install a fake vLLM of one version."""
    for name in ("FRAMEFLEET_MODEL", "FRAMEFLEET_TAKE_OVER", "FRAMEFLEET_BACKEND", "VLLM_VIDEO_LOADER_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    return lambda version="0.32.0+cpu": FakeVllm(monkeypatch, version)
