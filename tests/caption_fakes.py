"""A reader of fake clips without processes, and what caption tests make again and again."""

import asyncio
import os
import time
from pathlib import Path

from framefleet.caption.job import CaptionJob
from framefleet.caption.settings import CaptionSettings
from framefleet.decode.backends.fake import PREFIX, FakeBackend, FakeClip, scan_fake
from framefleet.decode.decoder import DecodedFrames, ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.targets import choose_targets, output_size
from framefleet.engine.captioner import CaptionRequest
from framefleet.engine.fake import FakeEngine, open_fake
from framefleet.media.digest import content_digest
from framefleet.media.source import VideoSource

LONG_AGO_S = 1_700_000_000
SMALL = DecodeOptions(num_frames=2, size=(160, 32), backend="fake")


class InProcessReader:
    """The ClipReader contract over fake clips; counts what it did."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.digested: list[str] = []
        self.scanned: list[str] = []
        self.decoded: list[str] = []
        self.before_decode = lambda _source: None
        self.after_decode = lambda _source: None

    async def digest(self, source: VideoSource) -> str:
        await asyncio.sleep(self.delay_s)
        self.digested.append(source.location)
        return content_digest(source)

    async def scan(self, source: VideoSource, options: DecodeOptions) -> ScannedClip:
        await asyncio.sleep(self.delay_s)
        self.scanned.append(source.location)
        return scan_fake(source)

    async def decode(self, source: VideoSource | ScannedClip, options: DecodeOptions) -> DecodedFrames:
        await asyncio.sleep(self.delay_s)
        clip = source if isinstance(source, ScannedClip) else scan_fake(source)
        self.decoded.append(clip.source.location)
        self.before_decode(clip.source)
        targets = choose_targets(clip.index, options)
        width, height = output_size(clip.info, len(targets.rows), options)
        frames = FakeBackend().decode(clip, plan_decode(clip.index, targets, width, height), options)
        self.after_decode(clip.source)
        return frames


def write_clip(path: Path, *, settled: bool = True, **spec: object) -> Path:
    """A file that describes a fake clip; old enough for its stamp to be trusted, unless asked otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    import msgspec

    path.write_bytes(PREFIX + msgspec.json.encode(FakeClip(**{"width": 160, "height": 32, **spec})))
    if settled:
        os.utime(path, ns=(int(LONG_AGO_S * 1e9), LONG_AGO_S * 1_000_000_000 + time.time_ns() % 1_000_000_000))
    return path


def write_clips(folder: Path, count: int, **spec: object) -> list[Path]:
    """Clips that differ."""
    return [write_clip(folder / f"clip_{n:03d}.mp4", seed=n, **spec) for n in range(count)]


def settings_for(**changes: object) -> CaptionSettings:
    """Fake engine, fake frames, no patience."""
    return CaptionSettings(**{"engine": "fake", "frames": SMALL, "attempts": 1, "concurrency": 4, **changes})


def job_for(inputs: object, output: Path, **changes: object) -> CaptionJob:
    """A job over these inputs."""
    listed = [str(inputs)] if isinstance(inputs, str | Path) else [str(one) for one in inputs]
    return CaptionJob(listed, str(output), settings_for(**changes))


def request_for(clip: str = "/clips/a.mp4", content: str = "ab" * 16, **changes: object) -> CaptionRequest:
    """A request about a whole clip."""
    fields = {"span": None, "prompt": "Say what is there.", "model": "fake", "frames": SMALL}
    return CaptionRequest(**{"clip": clip, "content_digest": content, **fields, **changes})


def fake_engine(**settings: object) -> FakeEngine:
    """The shipped fake."""
    return open_fake(**settings)
