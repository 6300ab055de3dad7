"""Every error framefleet raises, in one tree.

    FramefleetError                blame      retry
    ├── ConfigError                config     never
    │   └── MissingLibrary         config     never
    ├── SourceError                input      never
    │   ├── SourceNotFound         input      never
    │   ├── SourceCorrupt          input      never
    │   ├── SourceUnsupported      input      never
    │   ├── SourceTooLarge         input      never
    │   └── SourceUnavailable      input      later
    ├── DecodeError                input      elsewhere
    │   ├── SeekFailed             input      elsewhere
    │   ├── DecoderLost            input      elsewhere
    │   ├── DecodeTimeout          input      elsewhere
    │   └── DecoderBug             bug        elsewhere
    ├── BudgetError                device     later
    │   ├── BudgetTooLarge         device     elsewhere
    │   └── BudgetTimeout          device     later
    ├── CaptionError               bug        never
    │   ├── CaptionRejected        input      never
    │   ├── EngineBusy             device     later
    │   └── EngineLost             device     later
    ├── StoreError                 device     never
    │   ├── StoreFull              device     later
    │   ├── StoreLocked            config     later
    │   └── StoreUnreadable        input      never
    ├── ReplicaError               device     later
    └── DeviceError                device     elsewhere
        └── ServiceUnreachable     device     later

`blame` says who can mend it: the input, the device, the configuration, or us (bug).
`retry` says whether the same work may succeed: never, later (same place), elsewhere (another backend or replica).
The caption ledger and the proxy decide by these two and by nothing else. Foreign errors are turned into these where
the foreign library is called.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Blame = Literal["input", "device", "config", "bug"]
Retry = Literal["never", "later", "elsewhere"]


class FramefleetError(Exception):
    """Base of the tree. The message reads: what happened, what was given, what is allowed, what to try."""

    blame: ClassVar[Blame] = "bug"
    retry: ClassVar[Retry] = "never"

    def __init__(self, what: str, *, given: str = "", allowed: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.given = given
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.what]
        if self.given:
            parts.append(f"got {self.given}")
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.remedy:
            parts.append(f"try: {self.remedy}")
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.given, self.allowed, self.remedy)


def _rebuild(kind: type[FramefleetError], what: str, given: str, allowed: str, remedy: str) -> FramefleetError:
    return kind(what, given=given, allowed=allowed, remedy=remedy)


class ConfigError(FramefleetError):
    """A setting, flag or file of ours is wrong."""

    blame: ClassVar[Blame] = "config"


class MissingLibrary(ConfigError):
    """An optional library is not installed; the remedy names the extra."""


class SourceError(FramefleetError):
    """The clip cannot be read as video."""

    blame: ClassVar[Blame] = "input"


class SourceNotFound(SourceError):
    """No such file, object or address."""


class SourceCorrupt(SourceError):
    """The bytes are damaged or are no video container."""


class SourceUnsupported(SourceError):
    """A valid file of a kind that cannot be decoded here (no video stream, no decoder ...)."""


class SourceTooLarge(SourceError):
    """A limit on bytes, pixels, frames or seconds is passed; nothing was allocated."""


class SourceUnavailable(SourceError):
    """The place holding the clip did not deliver it (network, server error)."""

    retry: ClassVar[Retry] = "later"


class DecodeError(FramefleetError):
    """A backend could not give the frames asked for."""

    blame: ClassVar[Blame] = "input"
    retry: ClassVar[Retry] = "elsewhere"


class SeekFailed(DecodeError):
    """The frame at the asked time was not reached."""


class DecoderLost(DecodeError):
    """The decoder's process died (a native crash, or the kernel's out-of-memory killer)."""


class DecodeTimeout(DecodeError):
    """The deadline of the clip passed."""


class DecoderBug(DecodeError):
    """A decode worker raised something outside this tree. That is a fault of ours; the notes hold its traceback."""

    blame: ClassVar[Blame] = "bug"


class BudgetError(FramefleetError):
    """Memory could not be leased."""

    blame: ClassVar[Blame] = "device"
    retry: ClassVar[Retry] = "later"


class BudgetTooLarge(BudgetError):
    """The request is larger than the whole budget; waiting cannot help."""

    retry: ClassVar[Retry] = "elsewhere"


class BudgetTimeout(BudgetError):
    """The lease was not granted in time."""


class CaptionError(FramefleetError):
    """An engine could not caption."""


class CaptionRejected(CaptionError):
    """The engine refused the request (4xx), or its text failed validation."""

    blame: ClassVar[Blame] = "input"


class EngineBusy(CaptionError):
    """The engine asks to come back later (429, 503)."""

    blame: ClassVar[Blame] = "device"
    retry: ClassVar[Retry] = "later"


class EngineLost(CaptionError):
    """The engine died or the connection to it broke."""

    blame: ClassVar[Blame] = "device"
    retry: ClassVar[Retry] = "later"


class StoreError(FramefleetError):
    """Records could not be kept or read back."""

    blame: ClassVar[Blame] = "device"


class StoreFull(StoreError):
    """No room on the disk (or a quota or file-size limit is met); what was acknowledged before is safe."""

    retry: ClassVar[Retry] = "later"


class StoreLocked(StoreError):
    """Another process writes here; the message names it."""

    blame: ClassVar[Blame] = "config"
    retry: ClassVar[Retry] = "later"


class StoreUnreadable(StoreError):
    """Not a store, a damaged one, or one written by a newer framefleet."""

    blame: ClassVar[Blame] = "input"


class ReplicaError(FramefleetError):
    """A replica could not be started, reached or stopped."""

    blame: ClassVar[Blame] = "device"
    retry: ClassVar[Retry] = "later"


class DeviceError(FramefleetError):
    """A GPU, its driver, NVDEC or MPS does not do what is needed."""

    blame: ClassVar[Blame] = "device"
    retry: ClassVar[Retry] = "elsewhere"


class ServiceUnreachable(DeviceError):
    """No decode service has answered at its socket for longer than the grace."""

    retry: ClassVar[Retry] = "later"
