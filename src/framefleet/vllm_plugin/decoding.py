"""Where a loader's clips are decoded: by the decode service, or in this API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec

from framefleet.config import PREFIX
from framefleet.decode.choose import NVDEC, candidates
from framefleet.decode.decoder import DecodeBackend, DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.session import decode_scanned, scan_timed
from framefleet.errors import ConfigError, ServiceUnreachable
from framefleet.media.limits import Deadline
from framefleet.media.source import VideoSource
from framefleet.vllm_plugin.log import log

SOCKET_VARIABLE = PREFIX + "DECODE_SOCKET"
FALLBACK_VARIABLE = PREFIX + "DECODE_FALLBACK"
GRACE_VARIABLE = PREFIX + "DECODE_GRACE_S"
GPU_BACKENDS = frozenset({NVDEC, "deepstream"})
_LEAST_TIMEOUT_S = 0.01


class DecodingSettings(msgspec.Struct, frozen=True):
    """From the environment."""

    socket: str = ""
    """FRAMEFLEET_DECODE_SOCKET: the decode service's. Empty: clips are decoded in this process."""
    fallback: Literal["error", "in_process"] = "error"
    """FRAMEFLEET_DECODE_FALLBACK: what happens while the service stays away longer than the grace."""
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """FRAMEFLEET_DECODE_GRACE_S: how long clips wait for a service that does not answer."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> DecodingSettings:
        """Raises ConfigError."""
        named = {"socket": SOCKET_VARIABLE, "fallback": FALLBACK_VARIABLE, "grace_s": GRACE_VARIABLE}
        given = {field: environ[name] for field, name in named.items() if name in environ}
        try:
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(
                "wrong setting of the decode service", given=str(error), allowed=", ".join(named.values())
            ) from error


class Decoding:
    """Of one API server. Thread-safe; holds no connection between clips.

    `open_gpu` makes the backend for clips that are to be decoded on the GPU in this process, with so many decoders.
    """

    def __init__(self, settings: DecodingSettings, open_gpu: Callable[[int], DecodeBackend]) -> None:
        self._settings = settings
        self._client = ServiceClient(settings.socket, grace_s=settings.grace_s) if settings.socket else None
        self._open_gpu = open_gpu
        self._opening = threading.Lock()
        self._gpu: DecodeBackend | None = None
        self._is_away = False
        log.warning("framefleet: %s", self)

    def __str__(self) -> str:
        if self._client is None:
            return f"clips are decoded in this API server: {SOCKET_VARIABLE} is unset"
        return f"clips are decoded by the service at {self._client.path}"

    def decode(self, data: bytes, wanted: DecodeOptions) -> DecodedFrames:
        """The frames. Raises as `DecodePool.decode`, and DeviceError for a service that stays away."""
        if self._client is None:
            return self._decode_here(data, wanted)
        try:
            frames = self._client.decode(data, _for_service(wanted))
        except ServiceUnreachable as error:
            if self._settings.fallback == "error":
                raise
            self._say(away=str(error))
            return self._decode_here(data, msgspec.structs.replace(wanted, backend="auto"))
        self._say(away="")
        return frames

    def _decode_here(self, data: bytes, wanted: DecodeOptions) -> DecodedFrames:
        """On this thread. A crash of a decoder would take the server along: the service is there to end that."""
        clock = Deadline(wanted.timeout_s)
        own: dict[str, DecodeBackend] = {}
        if wanted.backend == NVDEC:
            own[NVDEC] = self._on_gpu(wanted.hw_decoders or 1)
            wanted = msgspec.structs.replace(wanted, backend="auto")
        names = _on_cpu(wanted)
        clip, probe_s = scan_timed(VideoSource.of(data), wanted)
        left = msgspec.structs.replace(wanted, timeout_s=max(clock.remaining_s, _LEAST_TIMEOUT_S))
        return decode_scanned(clip, left, probe_s=probe_s, names=names, own=own)

    def _on_gpu(self, decoders: int) -> DecodeBackend:
        with self._opening:
            if self._gpu is None:
                self._gpu = self._open_gpu(decoders)
            return self._gpu

    def _say(self, *, away: str) -> None:
        """Once per absence and once per return."""
        if bool(away) == self._is_away:
            return
        self._is_away = bool(away)
        if away:
            log.error("framefleet: clips are decoded in this API server, on the CPU, until it is back: %s", away)
        else:
            log.warning("framefleet: %s again", self)


def _for_service(wanted: DecodeOptions) -> DecodeOptions:
    """The GPU is the service's, which knows whether it has one. (DeepStream would start once in each worker.)"""
    if wanted.backend == NVDEC:
        return msgspec.structs.replace(wanted, backend="auto")
    if wanted.backend in GPU_BACKENDS:
        raise ConfigError("not a backend of the decode service", given=wanted.backend, remedy="leave `backend` out")
    return wanted


def _on_cpu(wanted: DecodeOptions) -> tuple[str, ...]:
    """Nothing of the GPU's memory is leased for these, so none may decode there: it would come out of the KV cache."""
    names = candidates(wanted)
    if named := GPU_BACKENDS.intersection(names):
        raise ConfigError(
            "in vLLM's server only what it reserved memory for decodes on the GPU",
            given=", ".join(named),
            allowed=f"auto, pyav, torchcodec, opencv, or {NVDEC} as `backend` of --media-io-kwargs",
        )
    return names
