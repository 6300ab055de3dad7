"""What a request will cost an engine, estimated from its JSON before anything is decoded. Pure.

The unit of work is one pixel of a frame that the model sees. Where frames and size are told (`media_io_kwargs`,
`mm_processor_kwargs`), a clip costs frames x pixels; else its bytes tell, else a usual clip is assumed. Tokens to be
generated are the second term. Only ratios between requests matter: a wrong unit moves every request alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

USUAL_FRAMES = 32
"""Frames of a clip where nothing tells: vLLM's default (`num_frames` of its video loader)."""
USUAL_FRAME_PIXELS = 1024 * 576
"""1080p as Qwen3-VL's processor scales 16 frames of it."""
USUAL_IMAGE_PIXELS = 1024 * 1024
PIXELS_PER_TOKEN = 2048
"""Of a prompt: a Qwen3-VL video token stands for 32 x 32 pixels of two frames."""
PROMPT_TOKENS_PER_GENERATED = 8
"""A generated token takes about as long as this many prompt tokens (a rough figure: batch and model move it)."""
USUAL_MAX_TOKENS = 150
"""Of a caption, where the request sets no limit."""
MAX_COUNTED_TOKENS = 4096
"""A limit is no promise: clients that allow 100,000 tokens do not get that many."""
PIXELS_PER_VIDEO_BYTE = 1
"""10.75 MB of H.264 (1080p, 20 s, 4.3 Mb/s) become 16 frames of 1024x576, 9.4 million pixels."""
PIXELS_PER_IMAGE_BYTE = 4
"""JPEG at about 2 bits a pixel."""
BYTES_PER_PROMPT_TOKEN = 4
HEAD_BYTES = 64 * 1024
"""How much of either end of a large body is searched."""


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's JSON tells of its size; None where it does not."""

    num_videos: int = 0
    num_images: int = 0
    num_frames: int | None = None
    """Of each video."""
    max_frames: int | None = None
    frame_pixels: int | None = None
    """Of each frame, at most."""
    clip_pixels: int | None = None
    """Of all frames of a video, at most."""
    media_bytes: int | None = None
    """Of the clips and pictures that travel in the request, base64 undone."""
    text_bytes: int = 0
    max_tokens: int | None = None


def work_of(facts: RequestFacts) -> int:
    """The estimate, in pixels; at least 1."""
    tokens = min(USUAL_MAX_TOKENS if facts.max_tokens is None else facts.max_tokens, MAX_COUNTED_TOKENS)
    text = facts.text_bytes // BYTES_PER_PROMPT_TOKEN * PIXELS_PER_TOKEN
    generated = max(0, tokens) * PROMPT_TOKENS_PER_GENERATED * PIXELS_PER_TOKEN
    return max(1, _media_work(facts) + text + generated)


def facts_of(body: bytes) -> RequestFacts:
    """Of a whole body. One that is no request in OpenAI's format gives what a search finds: the engine refuses it."""
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return facts_of_ends(body[:HEAD_BYTES], body[-HEAD_BYTES:] if len(body) > HEAD_BYTES else b"", len(body))
    return _facts_of_request(request, len(body))


def facts_of_ends(head: bytes, tail: bytes, total_bytes: int | None) -> RequestFacts:
    """Of a body that is too large to parse, from its two ends (`tail` may be missing yet).

    Names are looked for as JSON keys: one inside a text stands behind a backslash and is passed over.
    """
    ends = head + b"\n" + tail
    frame_pixels, clip_pixels = _size_of({name: _number_in(ends, name) for name in _SIZE_NAMES})
    return RequestFacts(
        num_videos=_parts_in(ends, b"video_url"),
        num_images=_parts_in(ends, b"image_url"),
        num_frames=_number_in(ends, "num_frames"),
        max_frames=_number_in(ends, "max_frames"),
        max_tokens=_first(_number_in(ends, "max_completion_tokens"), _number_in(ends, "max_tokens")),
        frame_pixels=frame_pixels,
        clip_pixels=clip_pixels,
        media_bytes=None if total_bytes is None else _undone(max(0, total_bytes - 1024)),
    )


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    video_url: Any = None
    image_url: Any = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Request(msgspec.Struct):
    messages: list[_Message] = []
    prompt: Any = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Request)
_NUMBER = re.compile(rb"\s*:\s*(\d{1,12})(?![\d.])")
_SIZE_NAMES = ("longest_edge", "max_pixels", "max_width", "max_height")


def _facts_of_request(request: _Request, total_bytes: int) -> RequestFacts:
    parts = [part for message in request.messages for part in message.content or () if isinstance(part, _Part)]
    videos = [_url_in(part.video_url) for part in parts if part.type == "video_url"]
    images = [_url_in(part.image_url) for part in parts if part.type == "image_url"]
    inline = [url for url in (*videos, *images) if url.startswith("data:")]
    inline_bytes = sum(map(len, inline))
    video_io = (request.media_io_kwargs or {}).get("video")
    video_io = video_io if isinstance(video_io, dict) else {}
    frame_pixels, clip_pixels = _size_of(_flat(request.mm_processor_kwargs or {}) | video_io)
    return RequestFacts(
        num_videos=len(videos),
        num_images=len(images),
        frame_pixels=frame_pixels,
        clip_pixels=clip_pixels,
        num_frames=_first(_count(video_io.get("num_frames")), _jpegs_in(videos)),
        max_frames=_count(video_io.get("max_frames")),
        media_bytes=_undone(inline_bytes) if inline and len(inline) == len(videos) + len(images) else None,
        text_bytes=max(0, total_bytes - inline_bytes),
        max_tokens=_first(request.max_completion_tokens, request.max_tokens),
    )


def _media_work(facts: RequestFacts) -> int:
    """Of clips and pictures. Told by frames and size; else by bytes; else as usual."""
    if facts.num_videos + facts.num_images == 0:
        return (facts.media_bytes or 0) * PIXELS_PER_VIDEO_BYTE  # large, and its parts out of sight
    num_frames = _first(facts.num_frames, facts.max_frames)
    is_told = num_frames is not None or facts.clip_pixels is not None
    if facts.media_bytes is not None and not (is_told and facts.num_videos):
        rate = PIXELS_PER_VIDEO_BYTE if facts.num_videos else PIXELS_PER_IMAGE_BYTE
        return facts.media_bytes * rate
    clip = (USUAL_FRAMES if num_frames is None else num_frames) * (facts.frame_pixels or USUAL_FRAME_PIXELS)
    clip = min(clip, facts.clip_pixels or clip)
    return facts.num_videos * clip + facts.num_images * min(facts.frame_pixels or USUAL_IMAGE_PIXELS, 1 << 24)


def _size_of(values: dict[str, Any]) -> tuple[int | None, int | None]:
    """`frame_pixels` and `clip_pixels`. Qwen3-VL's `longest_edge` limits the pixels of a whole clip, its name aside."""
    width, height = _count(values.get("max_width")), _count(values.get("max_height"))
    frame_pixels = _count(values.get("max_pixels")) or (width * height if width and height else None)
    return frame_pixels, _count(values.get("longest_edge"))


def _flat(kwargs: dict[str, Any]) -> dict[str, Any]:
    """`mm_processor_kwargs` with those of `videos_kwargs` and `size` pulled up."""
    flat = dict(kwargs)
    for name in ("videos_kwargs", "size"):
        if isinstance(inner := flat.get(name), dict):
            flat |= inner
    return flat


def _jpegs_in(videos: list[str]) -> int | None:
    """Frames of clips that come as `data:video/jpeg;base64,A,B,C`, on average."""
    if not videos or not all(url.startswith("data:video/jpeg") for url in videos):
        return None
    return max(1, sum(url.count(",") for url in videos) // len(videos))


def _url_in(part: Any) -> str:
    url = part.get("url") if isinstance(part, dict) else part
    return url if isinstance(url, str) else ""


def _parts_in(text: bytes, kind: bytes) -> int:
    return sum(1 for end in _ends_of_key(text, b"type") if re.compile(rb'\s*:\s*"%s"' % kind).match(text, end))


def _number_in(text: bytes, name: str) -> int | None:
    for end in _ends_of_key(text, name.encode()):
        if found := _NUMBER.match(text, end):
            return _count(int(found[1]))
    return None


def _ends_of_key(text: bytes, name: bytes) -> Iterator[int]:
    """Where `"name"` ends, each time, but for those within a text. One regular expression for it is 30 times slower."""
    key = b'"%s"' % name
    at = text.find(key)
    while at >= 0:
        if text[at - 1 : at] != b"\\":
            yield at + len(key)
        at = text.find(key, at + 1)


def _count(value: Any) -> int | None:
    """A positive number, else nothing (-1 and 0 mean "all" or "unset")."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value < 1e12 else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _undone(base64_bytes: int) -> int:
    return base64_bytes * 3 // 4
