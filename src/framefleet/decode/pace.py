"""Which silicon would finish a clip first, by measured cost. No clock, no clips: figures in, a choice out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

IDLE_WORTH = 2.0
_FORGETTING = 0.95
"""What a clip leaves of the weight of those before it."""
_PASSED_OVER = 0.98
"""The same, where the clip went elsewhere: an estimate that nobody checks grows old."""
_FIRST_S = {"nvdec": (0.04, 1e-9), "cpu": (0.04, 5e-9)}
"""Before anything was measured: seconds of any clip, and per coded pixel, of one NVDEC lane (three for two engines) and
of one CPU core (H200 and its host, 1080p H.264: benchmarks/nvdec)."""
_FIRST_WEIGHT = 0.5
_LARGE_PIXELS = 1e9


@dataclass(slots=True)
class Cost:
    """Seconds of a clip as a + b x pixels, by least squares of the relative errors; recent clips count more.

    A part that every clip costs is kept apart from the rate: clips of a few small pictures would else make a decoder
    look ten times slower for large ones. What was assumed at first, as many times as long as clips proved to take,
    stays in as two clips of half a weight: so sizes that were never seen have an answer, too.
    """

    first: tuple[float, float]
    weight: float = 0.0
    logs: float = 0.0
    """Of what clips took, as a multiple of what was assumed."""
    uu: float = 0.0
    uv: float = 0.0
    vv: float = 0.0
    u: float = 0.0
    v: float = 0.0
    """Sums of products of u = 1 / seconds and v = pixels / seconds."""

    def note(self, pixels: float, seconds: float) -> None:
        """What one clip took."""
        self.fade(_FORGETTING)
        fixed_s, s_per_pixel = self.first
        self.weight += 1
        self.logs += math.log(seconds / (fixed_s + s_per_pixel * pixels))
        self.add(pixels, seconds, 1.0)

    def fade(self, share: float) -> None:
        """Keep this share of the weight of what was seen."""
        self.weight, self.logs = self.weight * share, self.logs * share
        self.uu, self.uv, self.vv = self.uu * share, self.uv * share, self.vv * share
        self.u, self.v = self.u * share, self.v * share

    def line(self) -> tuple[float, float]:
        """Seconds of any clip and per pixel, neither below 0."""
        times = math.exp(self.logs / (self.weight + _FIRST_WEIGHT))
        fixed_s, s_per_pixel = (part * times for part in self.first)
        whole = replace(self)
        whole.add(0.0, fixed_s, _FIRST_WEIGHT)
        whole.add(_LARGE_PIXELS, fixed_s + s_per_pixel * _LARGE_PIXELS, _FIRST_WEIGHT)
        determinant = whole.uu * whole.vv - whole.uv * whole.uv
        fixed_s = (whole.u * whole.vv - whole.v * whole.uv) / determinant
        s_per_pixel = (whole.v * whole.uu - whole.u * whole.uv) / determinant
        if fixed_s < 0:
            return 0.0, whole.v / whole.vv
        if s_per_pixel < 0:
            return whole.u / whole.uu, 0.0
        return fixed_s, s_per_pixel

    def add(self, pixels: float, seconds: float, weight: float) -> None:
        """A clip, seen or assumed."""
        u, v = 1 / seconds, pixels / seconds
        self.uu, self.uv, self.vv = self.uu + weight * u * u, self.uv + weight * u * v, self.vv + weight * v * v
        self.u, self.v = self.u + weight * u, self.v + weight * v


@dataclass(slots=True)
class Silicon:
    """One kind of silicon: how many clips it works on at once, what it has been given, how fast it went so far.

    Work is counted in coded pixels of the pictures to decode. Each codec has its cost; one not seen yet has that of
    all clips together.
    """

    name: str
    places: int
    outstanding_clips: int = 0
    outstanding_pixels: float = 0.0
    _costs: dict[str, Cost] = field(default_factory=dict)
    """By codec, and of all under the empty name."""

    @property
    def has_room(self) -> bool:
        """A clip given now would begin at once."""
        return self.outstanding_clips < self.places

    def cost_s(self, codec: str, pixels: float) -> float:
        """Of a clip at one place, expected."""
        fixed_s, s_per_pixel = self._line(codec)
        return fixed_s + s_per_pixel * pixels

    def finish_s(self, codec: str, pixels: float) -> float:
        """Until a clip given now would be done: what is ahead of it shared among the places, then itself."""
        if not self.places:
            return float("inf")
        fixed_s, s_per_pixel = self._line(codec)
        ahead_s = fixed_s * self.outstanding_clips + s_per_pixel * self.outstanding_pixels
        return (0.0 if self.has_room else ahead_s / self.places) + fixed_s + s_per_pixel * pixels

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
        for name in (codec, ""):
            self._costs.setdefault(name, Cost(_FIRST_S[self.name])).note(pixels, seconds)

    def pass_over(self, codec: str) -> None:
        """It had room, and the clip went elsewhere."""
        for name in {codec, ""} & self._costs.keys():
            self._costs[name].fade(_PASSED_OVER)

    def _line(self, codec: str) -> tuple[float, float]:
        cost = self._costs.get(codec) or self._costs.get("")
        return cost.line() if cost else _FIRST_S[self.name]


def first_done(kinds: tuple[Silicon, ...], codec: str, pixels: float, *, idle_worth: float = IDLE_WORTH) -> Silicon:
    """The kind that would finish the clip first; the earlier one of equals.

    A kind with a free place may take `idle_worth` times as long and is still chosen: a place left idle while clips
    queue for the other kind is throughput lost. 1 is for those who wait for this one clip.
    """
    return min(kinds, key=lambda kind: kind.finish_s(codec, pixels) / (idle_worth if kind.has_room else 1.0))
