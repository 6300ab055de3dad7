import asyncio
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from caption_fakes import SMALL, InProcessReader, write_clip

from framefleet.caption.inputs import local_source
from framefleet.caption.shots import chunks, find_cuts, span_of_rows
from framefleet.caption.windowing import WindowRule, cut_clip
from framefleet.decode.backends.fake import scan_fake
from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import decode_scanned, scan_timed
from framefleet.errors import MissingLibrary
from framefleet.units import NS_PER_S


class SessionReader(InProcessReader):
    """Real files, decoded in this process."""

    async def scan(self, source, options):
        return scan_timed(source, options)[0]

    async def decode(self, source, options):
        return decode_scanned(source, options)


def draw(path: Path, num_frames: int, cuts: list[int], pts_ms: list[int]) -> Path:
    """Coloured tiles that slide; each cut brings other tiles. Times in ms, so the rate may vary."""
    rng, tiles = np.random.default_rng(7), None
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "40", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(num_frames):
            if number in cuts or tiles is None:
                tiles = rng.integers(0, 255, (6, 10, 3), dtype=np.uint8).repeat(32, 0).repeat(32, 1)
            frame = av.VideoFrame.from_ndarray(np.roll(tiles, number, 1), format="rgb24")
            frame.pts, frame.time_base = pts_ms[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def cuts_of(path: Path, min_shot_s: float = 1.0) -> list[int]:
    async def main() -> list[int]:
        reader = SessionReader()
        clip = await reader.scan(local_source(path), DecodeOptions())
        cuts_ns = await find_cuts(reader, clip, int(min_shot_s * NS_PER_S), DecodeOptions())
        return [int(np.flatnonzero(clip.index.pts_ns == cut)[0]) for cut in cuts_ns]

    return asyncio.run(main())


def test_cuts_are_the_first_frames_of_shots_also_across_chunks(tmp_path: Path):
    cuts = [100, 250, 256, 500]  # 256 lies 6 frames behind its neighbour, and where a chunk may end
    path = draw(tmp_path / "a.mkv", 600, cuts, [5000 + 40 * n for n in range(600)])
    assert cuts_of(path) == [100, 250, 500]
    assert cuts_of(path, min_shot_s=0.2) == [100, 250, 256, 500]


def test_cuts_lie_at_the_right_frame_when_the_rate_varies(tmp_path: Path):
    pts_ms = np.cumsum([20 if n % 50 < 25 else 90 for n in range(300)]).tolist()
    assert cuts_of(draw(tmp_path / "a.mkv", 300, [77, 201], pts_ms)) == [77, 201]


def test_shots_become_windows_no_longer_than_asked(tmp_path: Path):
    async def main():
        reader = SessionReader()
        path = draw(tmp_path / "a.mkv", 300, [100], [40 * n for n in range(300)])
        clip = await reader.scan(local_source(path), DecodeOptions())
        rule = WindowRule(min_shot_ns=NS_PER_S, length_ns=4 * NS_PER_S)
        return await cut_clip(reader, clip, rule, DecodeOptions())

    edges_s = [(w.start_ns / NS_PER_S, w.end_ns / NS_PER_S) for w in asyncio.run(main())]
    assert edges_s == [(0, 4), (4, 8), (8, 12)]


@pytest.mark.parametrize(("num_frames", "gop"), [(1, 1), (200, 30), (1000, 30), (5000, 5000), (257, 1)])
def test_chunks_tile_the_clip_at_keyframes(tmp_path: Path, num_frames: int, gop: int):
    index = scan_fake(local_source(write_clip(tmp_path / "a.mp4", num_frames=num_frames, gop=gop))).index
    rows = list(chunks(index))
    assert [row for chunk in rows for row in chunk] == list(range(num_frames))
    assert max(map(len, rows)) <= 2048
    spans = [span_of_rows(index, chunk) for chunk in rows]
    for chunk, span in zip(rows, spans, strict=True):
        held = np.flatnonzero((index.pts_ns >= span.start_ns) & (index.pts_ns < span.end_ns))
        assert held.tolist() == list(chunk)
        assert gop == 5000 or index.is_keyframe[chunk.start]


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "scenedetect", None)
    clip = scan_fake(local_source(write_clip(tmp_path / "a.mp4")))
    with pytest.raises(MissingLibrary, match=r"framefleet\[shots\]"):
        asyncio.run(find_cuts(InProcessReader(), clip, NS_PER_S, SMALL))
