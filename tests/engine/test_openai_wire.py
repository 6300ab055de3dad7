import base64
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_models import some_frames

from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.openai_wire import (
    answer_of,
    bytes_url,
    chat_body,
    clip_url,
    error_of,
    frames_url,
    local_path,
    retry_after_s,
)
from framefleet.engine.question import Question, Turn
from framefleet.errors import CaptionError, CaptionRejected, ConfigError, EngineBusy, EngineLost
from framefleet.units import Span

TURNS = (Turn("system", "SYS"), Turn("user", "Describe", True))


def body(question, **settings):
    defaults = {"json_mode": "json_schema", "tokens_field": "max_tokens", "extra": {}}
    return chat_body(question, model="m", video_url="file:///a.mp4", **(defaults | settings))


def test_the_video_stands_before_the_text():
    messages = body(Question(turns=TURNS))["messages"]
    assert messages[0] == {"role": "system", "content": "SYS"}
    assert messages[1]["content"] == [
        {"type": "video_url", "video_url": {"url": "file:///a.mp4"}},
        {"type": "text", "text": "Describe"},
    ]


def test_generation_settings_win_over_extra_fields():
    generation = GenerationSettings(max_tokens=9, temperature=0.5, seed=3, extra={"top_k": 5})
    sent = body(
        Question(turns=TURNS, generation=generation),
        extra={"temperature": 9, "mm_processor_kwargs": {"fps": 1}},
        tokens_field="max_completion_tokens",
    )
    assert (sent["max_completion_tokens"], sent["temperature"], sent["seed"], sent["top_k"]) == (9, 0.5, 3, 5)
    assert sent["mm_processor_kwargs"] == {"fps": 1}
    assert "max_tokens" not in sent


@pytest.mark.parametrize(
    ("mode", "expected"), [("json_schema", "json_schema"), ("json_object", "json_object"), ("none", None)]
)
def test_a_schema_is_told_as_the_server_takes_it(mode, expected):
    sent = body(Question(turns=TURNS, schema={"type": "object"}), json_mode=mode)
    assert (sent.get("response_format") or {}).get("type") == expected


def test_frames_go_with_their_clock():
    frames = some_frames(3, step=10, fps=25.0)
    video = body(Question(turns=TURNS, frames=frames), extra={"media_io_kwargs": {"video": {"x": 1}}})
    assert video["media_io_kwargs"]["video"] == {
        "x": 1, "num_frames": 3, "frames_indices": [0, 10, 20], "fps": 25.0, "total_num_frames": 30, "duration": 1.2,
        "do_sample_frames": False,
    }  # fmt: skip
    window = body(Question(turns=TURNS, frames=frames, span=Span(0, 10**9)))
    assert window["media_io_kwargs"]["video"]["duration"] == 1.0


def test_frames_are_jpegs_of_good_quality():
    frames = some_frames(2, 64, 96)
    head, *parts = frames_url(frames).split(",")
    assert head == "data:video/jpeg;base64"
    back = np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(p)))) for p in parts])
    assert back.shape == frames.data.shape
    assert np.abs(back.astype(int) - frames.data).mean() < 3


@pytest.mark.parametrize("name", ["a.mp4", "ひまわり 100% #1?&é.mp4", "-dash first.mp4", "a%20b.mp4"])
def test_names_are_escaped_once(tmp_path, name):
    clip = tmp_path / name
    clip.write_bytes(b"x")
    url = clip_url(str(clip))
    assert url.startswith("file:///")
    assert not set(url) & set(" #?é")
    assert local_path(url) == clip


def test_names_that_are_no_text_survive(tmp_path):
    clip = tmp_path / os.fsdecode(b"\xff\xfe.mp4")
    clip.write_bytes(b"x")
    assert local_path(clip.as_uri()) == clip
    assert clip_url(clip.as_uri()) == clip.as_uri()


def test_addresses_stay_as_they_are():
    assert clip_url("https://host/a b.mp4") == "https://host/a b.mp4"
    assert local_path("s3://bucket/a.mp4") is None
    assert local_path("relative.mp4") == Path("relative.mp4")


def test_bytes_say_what_they_are():
    assert bytes_url("a.webm", b"xyz") == "data:video/webm;base64,eHl6"
    assert bytes_url("a.txt", b"xyz").startswith("data:video/mp4;")
    assert bytes_url("odd", b"").startswith("data:video/mp4;")


@pytest.mark.parametrize(
    ("content", "text"),
    [("A car.", "A car."), (None, ""), ([{"type": "text", "text": "A "}, {"type": "text", "text": "car."}], "A car.")],
)
def test_contents_of_every_kind_are_read(content, text):
    reply = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "usage": None}
    assert answer_of(reply).text == text


def test_reasoning_and_usage_are_kept():
    reply = {
        "choices": [{"message": {"content": "", "reasoning_content": "hm"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }
    answer = answer_of(reply)
    assert (answer.reasoning, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == (
        "hm", "length", 5, 7
    )  # fmt: skip


@pytest.mark.parametrize(
    "reply", [{}, [], None, "x", {"choices": []}, {"choices": [{}]}, {"choices": [{"message": 3}]}]
)
def test_what_is_no_answer_is_an_error(reply):
    with pytest.raises(CaptionError):
        answer_of(reply)


def test_filtered_answers_are_rejected():
    with pytest.raises(CaptionRejected, match="filter"):
        answer_of({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, CaptionRejected), (401, ConfigError), (403, ConfigError), (404, ConfigError), (408, EngineLost),
        (413, CaptionRejected), (422, CaptionRejected), (429, EngineBusy), (500, EngineLost), (502, EngineLost),
        (503, EngineBusy), (504, EngineLost),
    ],
)  # fmt: skip
def test_statuses_become_our_errors(status, kind):
    assert type(error_of(status, "")) is kind


@pytest.mark.parametrize(
    "reply",
    [
        json.dumps({"error": {"message": "bad video", "code": 400}}), json.dumps({"message": "bad video"}),
        json.dumps({"detail": "bad video"}), json.dumps({"error": "bad video"}), "bad video\n",
    ],
)  # fmt: skip
def test_the_servers_own_words_are_kept(reply):
    assert str(error_of(400, reply)) == "the server refused the request; got HTTP 400: bad video"


def test_refusals_that_a_flag_mends_say_which():
    refusals = ["Per-request media_io_kwargs are disabled", "must be a subpath of `--allowed-local-media-path /x`"]
    errors = [error_of(400, json.dumps({"error": {"message": text}})) for text in refusals]
    assert "--trust-request-mm-kwargs" in errors[0].remedy
    assert "send bytes" in errors[1].remedy


def test_retry_after_is_seconds_or_a_date():
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2165 07:28:00 GMT"}) > 1e9
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None
