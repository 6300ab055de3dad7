"""Questions and answers in OpenAI's chat-completions format. Pure, but for reading the clip's bytes."""

from __future__ import annotations

import base64
import email.utils
import io
import json
import mimetypes
import os
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from framefleet.decode.decoder import DecodedFrames
from framefleet.engine.clock import clock_of
from framefleet.engine.question import Answer, FinishReason, Question, Turn
from framefleet.errors import CaptionError, CaptionRejected, ConfigError, EngineBusy, EngineLost, FramefleetError
from framefleet.units import Span

JsonMode = Literal["json_schema", "json_object", "none"]
JPEG_QUALITY = 95


def chat_body(
    question: Question, *, model: str, video_url: str, json_mode: JsonMode, tokens_field: str, extra: dict[str, Any]
) -> dict[str, Any]:
    """The request's body. `extra` fields go in unchanged; those of the question's generation settings win over them."""
    generation = question.generation
    body: dict[str, Any] = {
        **extra,
        "model": model,
        "messages": [_message(turn, video_url) for turn in question.turns],
        tokens_field: generation.max_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        **generation.extra,
    }
    if generation.seed is not None:
        body["seed"] = generation.seed
    if question.schema is not None and json_mode != "none":
        body["response_format"] = _response_format(question.schema, json_mode)
    if question.frames is not None:
        body["media_io_kwargs"] = _with_clock(extra.get("media_io_kwargs", {}), question.frames, question.span)
    return body


def local_path(clip: str) -> Path | None:
    """The file that a clip's name means (a path, or a `file://` URL where the name is no text); None for other URLs."""
    if clip.startswith("file://"):
        return Path(os.fsdecode(urllib.parse.unquote_to_bytes(clip.removeprefix("file://"))))
    return None if "://" in clip and not Path(clip).exists() else Path(clip)


def clip_url(clip: str) -> str:
    """A URL for the server to open: the clip's own, or `file://` with every odd character escaped once."""
    path = local_path(clip)
    return clip if path is None else path.absolute().as_uri()


def bytes_url(name: str, content: bytes) -> str:
    """The clip itself as a data URL."""
    kind = mimetypes.guess_type(name)[0] or ""
    return f"data:{kind if kind.startswith('video/') else 'video/mp4'};base64,{base64.b64encode(content).decode()}"


def frames_url(frames: DecodedFrames) -> str:
    """The frames as JPEGs in one data URL, as vLLM's video loader reads them (`load_base64`, `video/jpeg`)."""
    from PIL import Image

    pictures = []
    for frame in frames.data.cpu().numpy() if hasattr(frames.data, "cpu") else frames.data:
        jpeg = io.BytesIO()
        Image.fromarray(np.asarray(frame)).save(jpeg, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        pictures.append(base64.b64encode(jpeg.getvalue()).decode())
    return "data:video/jpeg;base64," + ",".join(pictures)


def answer_of(body: Any) -> Answer:
    """The answer in a response. Raises CaptionError when it holds none, CaptionRejected when it was filtered."""
    try:
        choice, usage = body["choices"][0], body.get("usage") or {}
        message = choice["message"]
        return Answer(
            text=_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            finish_reason=finish_reason(choice.get("finish_reason")),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CaptionError(
            "the server's answer is no chat completion",
            given=str(body)[:200],
            remedy="check that the endpoint is an OpenAI-compatible one",
        ) from error


def finish_reason(reported: Any) -> FinishReason:
    """Ours for the server's. Raises CaptionRejected for a content filter."""
    if reported == "content_filter":
        raise CaptionRejected("the server's content filter withheld the answer")
    return "length" if reported == "length" else "stop"


def error_of(status: int, body: str) -> FramefleetError:
    """The error that an HTTP status above 399 stands for."""
    given = f"HTTP {status}: {_server_message(body)}"
    if status in (429, 503):
        return EngineBusy("the server is busy", given=given)
    if status in (401, 403):
        return ConfigError("the server does not let us in", given=given, remedy="an API key")
    if status == 404:
        return ConfigError("the server does not know the model or the address", given=given, remedy="see /v1/models")
    if status in (408, 409) or status >= 500:
        return EngineLost("the server failed", given=given)
    return CaptionRejected("the server refused the request", given=given, remedy=_remedy(given))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait (a number or a date), None where it asks nothing readable."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _remedy(given: str) -> str:
    """What mends a refusal that is no fault of the clip."""
    if "media_io_kwargs" in given:  # vLLM since 0.32: frames cannot say when they are without it
        return "start vLLM with --trust-request-mm-kwargs, or send url or bytes"
    if "allowed-local-media-path" in given:
        return "start the server with the clips' folder as --allowed-local-media-path, or send bytes"
    return ""


def _message(turn: Turn, video_url: str) -> dict[str, Any]:
    if not turn.has_video:
        return {"role": turn.role, "content": turn.text}
    video = {"type": "video_url", "video_url": {"url": video_url}}
    return {"role": turn.role, "content": [video, {"type": "text", "text": turn.text}]}


def _response_format(schema: dict[str, Any], json_mode: JsonMode) -> dict[str, Any]:
    if json_mode == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "caption", "schema": schema}}


def _with_clock(media_io_kwargs: dict[str, Any], frames: DecodedFrames, span: Span | None) -> dict[str, Any]:
    clock = clock_of(frames, span)
    video = dict(media_io_kwargs.get("video", {}))
    video |= {
        "num_frames": len(frames), "frames_indices": clock.frames_indices, "fps": clock.fps,
        "total_num_frames": clock.total_num_frames, "duration": clock.duration, "do_sample_frames": False,
    }  # fmt: skip
    return media_io_kwargs | {"video": video}


def _text(content: Any) -> str:
    """Content is a string, null, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def _server_message(body: str) -> str:
    """What the server says is wrong: OpenAI's `error.message`, vLLM's and FastAPI's variants, or the text itself."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.strip()[:300]
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return str(found).strip()[:500]
