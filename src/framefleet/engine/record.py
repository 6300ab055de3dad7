"""The record of an answer."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime

from framefleet._version import __version__
from framefleet.decode.decoder import DecodedFrames
from framefleet.engine.captioner import CaptionRecord, CaptionRequest
from framefleet.engine.judging import Verdict, clean_text
from framefleet.engine.question import Answer
from framefleet.units import NS_PER_S


def record_of(
    request: CaptionRequest,
    frames: DecodedFrames | None,
    answer: Answer,
    verdict: Verdict,
    *,
    engine: str,
    model: str,
    versions: dict[str, str],
) -> CaptionRecord:
    """Request, frames, answer and verdict as the one row that is stored. Decoding's seconds are in it too."""
    start_s, end_s = window_s(request, frames)
    stats = frames.stats if frames else None
    return CaptionRecord(
        digest=request.digest,
        clip=request.clip,
        content_digest=request.content_digest,
        start_s=start_s,
        end_s=end_s,
        prompt=request.prompt,
        text=clean_text(answer.text),
        json=clean_text(verdict.json),
        status=verdict.status,
        reason="CaptionRejected" if verdict.status == "rejected" else "",
        message=verdict.message,
        model=request.model or model,
        engine=engine,
        backend=stats.backend if stats else "",
        num_frames=len(frames) if frames else 0,
        num_missing=stats.num_missing if stats else 0,
        frame_pts_s=frames.pts_s.tolist() if frames else [],
        width=frames.data.shape[2] if frames else 0,
        height=frames.data.shape[1] if frames else 0,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        attempts=answer.attempts,
        seconds=(stats.seconds if stats else {}) | answer.seconds,
        versions={"framefleet": __version__} | versions,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def window_s(request: CaptionRequest, frames: DecodedFrames | None) -> tuple[float, float]:
    """[start, end) of the window in seconds; for a whole clip from its index, and equal when nobody read the clip."""
    if request.span is not None:
        return request.span.start_ns / NS_PER_S, request.span.end_ns / NS_PER_S
    if frames is None or len(frames) == 0:
        return 0.0, 0.0
    before_s = float(frames.indices[0]) / frames.fps if frames.fps > 0 else 0.0
    start_s = float(frames.pts_s[0]) - before_s
    return start_s, start_s + frames.duration_s


def library_versions(*names: str) -> dict[str, str]:
    """The installed versions of these distributions."""
    return {name: importlib.metadata.version(name) for name in names}
