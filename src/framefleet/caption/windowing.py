"""A clip's windows by a rule: the scan, the cuts where shots are wanted, and the pure rules of `windows`."""

from __future__ import annotations

import msgspec

from framefleet.caption.reader import ClipReader
from framefleet.caption.shots import find_cuts
from framefleet.caption.windows import check_count, count_windows, cut_at, cut_windows, join_frameless
from framefleet.decode.decoder import ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.errors import ConfigError, SourceUnsupported
from framefleet.units import Span

_RULES_VERSION = 1
"""Raise it when the same rule gives other windows, so that remembered ones are cut anew."""


class WindowRule(msgspec.Struct, frozen=True, kw_only=True):
    """How clips are cut."""

    length_ns: int | None = None
    """Length of a window, or with shots the longest shot."""
    overlap_ns: int = 0
    min_shot_ns: int | None = None
    """The shortest shot; None: no shots."""
    max_windows: int = 10_000

    def __post_init__(self) -> None:
        if self.length_ns is not None and not 0 <= self.overlap_ns < self.length_ns:
            raise ConfigError(
                "the windows make no progress",
                given=f"window {self.length_ns / 1e9:g}s, overlap {self.overlap_ns / 1e9:g}s",
                allowed="0 <= overlap < window",
            )
        if self.min_shot_ns is not None and self.overlap_ns:
            raise ConfigError(
                "shots do not overlap", given=f"overlap {self.overlap_ns / 1e9:g}s", remedy="leave one out"
            )

    @property
    def key(self) -> str:
        """Names the rule in the ledger."""
        return f"{_RULES_VERSION}:{self.length_ns}:{self.overlap_ns}:{self.min_shot_ns}"


async def cut_clip(reader: ClipReader, clip: ScannedClip, rule: WindowRule, options: DecodeOptions) -> list[Span]:
    """The windows of a scanned clip, in order.

    Raises SourceUnsupported for a clip without frames, SourceTooLarge for more windows than allowed; where shots are
    looked for, what `find_cuts` raises.
    """
    index, name = clip.index, clip.source.name
    if not index.num_frames:
        raise SourceUnsupported("there is no frame to caption", given=repr(name))
    first_ns, end_ns = int(index.pts_ns[0]), max(index.end_ns, int(index.pts_ns[-1]) + 1)
    if rule.min_shot_ns is not None:
        cuts_ns = await find_cuts(reader, clip, rule.min_shot_ns, options)
        windows = cut_at(cuts_ns, first_ns, end_ns, rule.min_shot_ns, rule.length_ns)
    else:
        assert rule.length_ns is not None
        check_count(count_windows(first_ns, end_ns, rule.length_ns, rule.overlap_ns), rule.max_windows, name)
        windows = cut_windows(first_ns, end_ns, rule.length_ns, rule.overlap_ns)
    windows = join_frameless(windows, index.pts_ns)
    check_count(len(windows), rule.max_windows, name)
    return windows
