"""Does a replica with new settings answer as well as one with the old? Asked here, judged by a pure function."""

from __future__ import annotations

import base64
import json
import statistics
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from framefleet.errors import ConfigError
from framefleet.serve.fleet_settings import CanarySettings

NUM_SAMPLE_CLIPS = 4
_ASK_S = 300


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica said about one clip."""

    clip: str
    text: str = ""
    ttft_s: float = 0.0
    error: str = ""
    """Empty: it answered."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the new one may stay, and what of it was measured."""

    reasons: tuple[str, ...] = ()
    """Against it; none: it may stay."""
    difference: float = 0.0
    """Of its captions to the old ones, mean share of words."""
    old_ttft_s: float = 0.0
    ttft_s: float = 0.0
    num_errors: int = 0
    num_clips: int = 0

    @property
    def is_good(self) -> bool:
        """It may stay."""
        return not self.reasons


async def ask(base_url: str, model: str, settings: CanarySettings, *, api_key: str = "") -> list[Answered]:
    """One question per clip, one after the other, after one that is thrown away: the first pays for warming up.

    Raises ConfigError for a clip that cannot be read.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    clips = [Path(clip) for clip in settings.clips] or sample_paths()
    async with aiohttp.ClientSession(base_url, headers=headers, timeout=timeout) as session:
        await _ask_one(session, _question(model, clips[0], settings), clips[0])
        return [await _ask_one(session, _question(model, clip, settings), clip) for clip in clips]


def sample_paths() -> list[Path]:
    """A few sample clips, evenly picked."""
    from framefleet.scenes import sample_clips

    clips = sample_clips()
    return [clip.path for clip in clips[:: len(clips) // NUM_SAMPLE_CLIPS]][:NUM_SAMPLE_CLIPS]


def judge(old: Sequence[Answered], new: Sequence[Answered], settings: CanarySettings) -> Verdict:
    """Compare answers about the same clips. Where the old one gave none (`old` may be empty) the new one must only
    answer. Pure."""
    before = {one.clip: one for one in old if not one.error}
    answered = [one for one in new if not one.error]
    both = [(before[one.clip], one) for one in answered if one.clip in before]
    verdict = Verdict(
        difference=_mean([difference_of(a.text, b.text) for a, b in both]),
        old_ttft_s=_median([a.ttft_s for a, _ in both]),
        ttft_s=_median([b.ttft_s for _, b in both]),
        num_errors=len(new) - len(answered),
        num_clips=len(new),
    )
    failed = [one for one in new if one.error and (one.clip in before or not before)]
    return msgspec.structs.replace(verdict, reasons=tuple(_reasons(verdict, failed, settings)))


def difference_of(old: str, new: str) -> float:
    """Share of words in which two texts differ, 0 to 1. Pure."""
    return 1.0 - SequenceMatcher(None, old.split(), new.split(), autojunk=False).ratio()


def _reasons(verdict: Verdict, failed: list[Answered], settings: CanarySettings) -> list[str]:
    reasons = []
    if failed:
        reasons.append(f"no answer about {len(failed)} of {verdict.num_clips} clips: {failed[0].error}")
    if verdict.difference > settings.max_difference:
        reasons.append(f"captions differ in {verdict.difference:.0%} of words, allowed {settings.max_difference:.0%}")
    limit_s = verdict.old_ttft_s * settings.max_ttft_ratio + settings.ttft_slack_s
    if verdict.old_ttft_s and verdict.ttft_s > limit_s:
        old = f"before {verdict.old_ttft_s:.2f} s, allowed {limit_s:.2f} s"
        reasons.append(f"first token after {verdict.ttft_s:.2f} s ({old})")
    return reasons


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def _question(model: str, clip: Path, settings: CanarySettings) -> dict[str, Any]:
    try:
        content = base64.b64encode(clip.read_bytes()).decode()
    except OSError as error:
        raise ConfigError("cannot read a canary's clip", given=f"{clip} ({error.strerror})") from error
    video = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{content}"}}
    words = [{"type": "text", "text": settings.prompt}, video]
    sampling = {"max_tokens": settings.max_tokens, "temperature": 0, "stream": True}
    return {"model": model, "messages": [{"role": "user", "content": words}], **sampling}


async def _ask_one(session: aiohttp.ClientSession, question: dict[str, Any], clip: Path) -> Answered:
    started_s, first_s, pieces = time.perf_counter(), 0.0, []
    try:
        async with session.post("/v1/chat/completions", json=question) as response:
            if response.status != 200:
                said = (await response.text())[:200]
                return Answered(clip=str(clip), error=f"HTTP {response.status}: {said}")
            async for line in response.content:
                if piece := _piece(line):
                    first_s = first_s or time.perf_counter() - started_s
                    pieces.append(piece)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return Answered(clip=str(clip), error=f"{type(error).__name__}: {error}")
    text = "".join(pieces).strip()
    return Answered(clip=str(clip), text=text, ttft_s=first_s, error="" if text else "an empty caption")


def _piece(line: bytes) -> str:
    """The text in one line of a stream of events. Raises ValueError for an error event."""
    if not line.startswith(b"data: {"):
        return ""
    event = json.loads(line[6:])
    if "error" in event:
        raise ValueError(str(event["error"])[:200])
    return "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", []))
