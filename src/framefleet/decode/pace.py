"""Which silicon would finish a clip first, by measured cost. No clock, no clips: figures in, a choice out."""

from __future__ import annotations

from dataclasses import dataclass, field

IDLE_WORTH = 2.0
_LEAST_WEIGHT = 0.05
_CODEC_FIRST_S_PER_UNIT = {"nvdec": 1.5e-9, "cpu": 5e-9}
"""Before anything was measured: seconds per coded pixel of one NVDEC lane (two lanes an engine) and of one CPU core
(H200 and its host, 1080p H.264: benchmarks/nvdec)."""


@dataclass(slots=True)
class Silicon:
    """One kind of silicon: how many clips it works on at once, what it has been given, how fast it went so far.

    Work is counted in coded pixels of the pictures to decode. Of each codec the mean of seconds per pixel is kept,
    recent clips counting more; a codec not seen yet is taken for as fast as the mean of the others.
    """

    name: str
    places: int
    outstanding_clips: int = 0
    outstanding_pixels: float = 0.0
    _s_per_pixel: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Codec -> mean, number of clips."""

    @property
    def has_room(self) -> bool:
        """A clip given now would begin at once."""
        return self.outstanding_clips < self.places

    def s_per_pixel(self, codec: str) -> float:
        """Of one place, expected."""
        if codec in self._s_per_pixel:
            return self._s_per_pixel[codec][0]
        known = [mean for mean, _ in self._s_per_pixel.values()]
        return sum(known) / len(known) if known else _CODEC_FIRST_S_PER_UNIT[self.name]

    def finish_s(self, codec: str, pixels: float) -> float:
        """Until a clip given now would be done: what is ahead of it shared among the places, then itself."""
        if not self.places:
            return float("inf")
        ahead = self.outstanding_pixels / self.places if not self.has_room else 0.0
        return (ahead + pixels) * self.s_per_pixel(codec)

    def begin(self, pixels: float) -> None:
        """A clip was given to it."""
        self.outstanding_clips += 1
        self.outstanding_pixels += pixels

    def end(self, pixels: float) -> None:
        """The clip left, done or not."""
        self.outstanding_clips -= 1
        self.outstanding_pixels -= pixels

    def note(self, codec: str, pixels: float, seconds: float) -> None:
        """What one clip took at its place."""
        if pixels <= 0 or seconds <= 0:
            return
        mean, count = self._s_per_pixel.get(codec, (0.0, 0))
        weight = max(_LEAST_WEIGHT, 1 / (count + 1))
        self._s_per_pixel[codec] = (mean + weight * (seconds / pixels - mean), count + 1)


def first_done(kinds: tuple[Silicon, ...], codec: str, pixels: float, *, idle_worth: float = IDLE_WORTH) -> Silicon:
    """The kind that would finish the clip first; the earlier one of equals.

    A kind with a free place may take `idle_worth` times as long and is still chosen: a place left idle while clips
    queue for the other kind is throughput lost. 1 is for those who wait for this one clip.
    """
    return min(kinds, key=lambda kind: kind.finish_s(codec, pixels) / (idle_worth if kind.has_room else 1.0))
