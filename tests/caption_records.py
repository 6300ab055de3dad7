"""Caption records for tests of stores and search."""

import hashlib
from typing import Any

from framefleet.engine.captioner import CaptionRecord

ODD_TEXTS = {
    "nul": "before\0after",
    "lone surrogates": "high \ud83d low \udcff end",
    "emoji": "🚚🏽‍♂️ red truck 🇯🇵",
    "newlines": "first\nsecond\r\nthird\u2028fourth\x85",
    "quotes": """it's "quoted" `so`; DROP TABLE captions; -- %_\\""",
    "right to left": "شاحنة حمراء على طريق مبلل",
    "japanese": "夜の道路に赤いトラックがあります",
    "100 kB": "A red truck brakes on the wet road. " * 2900,
    "blank": "",
    "journal magic": "FFj1\x00\x00\x00\x00FFj1",
}


def digest(number: int | str) -> str:
    """A digest of the right shape; the first of them ends in zero bytes."""
    return "ab" + "00" * 15 if number == 0 else hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


def record(number: int = 1, **changes: Any) -> CaptionRecord:
    """A full record, every field unlike its default."""
    fields: dict[str, Any] = {
        "digest": digest(number), "clip": f"/clips/day {number % 3}/clip_{number:03d}.mp4",
        "content_digest": digest(f"c{number}"),
        "start_s": 0.5 * number, "end_s": 0.5 * number + 4.0, "prompt": "Describe the scene.",
        "text": f"A red truck number {number} brakes on the wet road.", "json": '{"vehicle":"truck"}', "status": "ok",
        "reason": "", "message": "all well", "model": "dashcam_tiny", "engine": "embedded", "backend": "pyav",
        "num_frames": 3,
        "num_missing": 1, "frame_pts_s": [0.0, 1 / 3, 2 / 3], "width": 640, "height": 360, "prompt_tokens": 321,
        "completion_tokens": 45, "attempts": 2, "seconds": {"decode": 0.125, "generate": 1.5},
        "versions": {"framefleet": "0.1.0", "torch": "2.13.0"}, "created_at": "2026-09-30T12:34:56.789+00:00",
    }  # fmt: skip
    return CaptionRecord(**{**fields, **changes})


def failed(number: int, **changes: Any) -> CaptionRecord:
    """What a clip that could not be read leaves."""
    return record(
        number,
        **{"status": "failed", "text": "", "json": "", "reason": "SourceCorrupt", "message": "no moov"} | changes,
    )
