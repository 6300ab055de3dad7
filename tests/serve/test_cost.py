"""What requests are thought to cost: order and proportion matter, not the unit."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.serve.cost import HEAD_BYTES, RequestFacts, facts_of, facts_of_ends, work_of

URL = "http://host/clip.mp4"


def body(*urls, kind="video_url", text="Describe.", **fields):
    parts = [{"type": kind, kind: {"url": url}} for url in urls]
    message = {"role": "user", "content": [{"type": "text", "text": text}, *parts]}
    return json.dumps({"model": "m", "messages": [message], **fields}).encode()


def work(*args, **kwargs):
    return work_of(facts_of(body(*args, **kwargs)))


def clip_url(num_bytes, mime="video/mp4"):
    return f"data:{mime};base64,{base64.b64encode(bytes(num_bytes)).decode()}"


def video(**fields):
    return {"media_io_kwargs": {"video": fields}}


def test_work_grows_with_frames_size_parts_and_tokens():
    assert work(URL, **video(num_frames=64)) > work(URL, **video(num_frames=16))
    assert work(URL, **video(fps=2, max_frames=64)) > work(URL, **video(fps=2, max_frames=16))
    small, large = ({"mm_processor_kwargs": {"max_pixels": n}} for n in (100_000, 400_000))
    assert work(URL, **large) > work(URL, **small)
    assert work(URL, URL) > work(URL) > work(URL, kind="image_url") > work()
    assert work(URL, max_tokens=512) > work(URL, max_tokens=16)
    assert work(URL, max_completion_tokens=512) > work(URL, max_completion_tokens=16)
    assert work(text="word " * 9000) > work(text="word")


def test_frames_times_pixels_where_both_are_told():
    told = {**video(num_frames=16), "mm_processor_kwargs": {"max_pixels": 1000}, "max_tokens": 0, "text": ""}
    media = [facts_of(body(*[URL] * n, **told)) for n in (1, 3)]
    assert [facts.num_frames for facts in media] == [16, 16]
    texts = [work_of(RequestFacts(text_bytes=facts.text_bytes, max_tokens=0)) for facts in media]
    assert [work_of(facts) - text for facts, text in zip(media, texts, strict=True)] == [16_000, 48_000]


def test_the_limit_of_a_whole_clip_holds():
    facts = facts_of(body(URL, mm_processor_kwargs={"size": {"longest_edge": 5000, "shortest_edge": 4}}))
    assert facts.clip_pixels == 5000
    nested = {"videos_kwargs": {"size": {"longest_edge": 5000}}}
    assert facts_of(body(URL, mm_processor_kwargs=nested)).clip_pixels == 5000


def test_bytes_tell_where_frames_do_not():
    assert work(clip_url(900_000)) > 3 * work(clip_url(100_000), max_tokens=1)
    assert facts_of(body(clip_url(90_000))).media_bytes == pytest.approx(90_000, rel=0.01)
    assert facts_of(body(clip_url(90_000), URL)).media_bytes is None  # one of them is out of sight


def test_frames_that_come_as_pictures_are_counted():
    jpegs = "data:video/jpeg;base64," + ",".join(["AAAA"] * 24)
    assert facts_of(body(jpegs)).num_frames == 24


def test_text_that_looks_like_settings_is_text():
    sneaky = '{"num_frames": 9999, "max_tokens": 7}'
    assert facts_of(body(URL, text=sneaky)).num_frames is None
    assert facts_of_ends(body(URL, text=sneaky), b"", 100).num_frames is None


def test_the_ends_of_a_large_body_tell_what_the_whole_does():
    fields = {**video(num_frames=24), "max_tokens": 77, "mm_processor_kwargs": {"max_pixels": 123}}
    whole = body(clip_url(3_000_000), **fields)
    ends = facts_of_ends(whole[:HEAD_BYTES], whole[-HEAD_BYTES:], len(whole))
    assert work_of(ends) == pytest.approx(work_of(facts_of(whole)), rel=0.15)
    head_only = facts_of_ends(whole[:HEAD_BYTES], b"", len(whole))
    assert (head_only.num_videos, head_only.num_frames) == (1, None)
    assert work_of(head_only) > work_of(facts_of_ends(whole[:HEAD_BYTES], b"", 400_000))


@pytest.mark.parametrize(
    "odd",
    [
        b"", b"not json", b"[]", b"null", b'{"messages": "x"}', b'{"messages": [{"content": [{"type": 5}]}]}',
        b'{"media_io_kwargs": {"video": 5}}', b'{"media_io_kwargs": {"video": {"num_frames": "many"}}}',
        b'{"max_tokens": -5}', b'{"max_tokens": 1e300}', b"[" * 100_000, b'\xff{"max_tokens"',
    ],
)  # fmt: skip
def test_odd_bodies_have_a_price_too(odd):
    assert work_of(facts_of(odd)) >= 1


@given(st.binary(max_size=300), st.binary(max_size=300), st.none() | st.integers(0, 10**12))
def test_any_bytes_have_a_price(head, tail, total_bytes):
    assert work_of(facts_of_ends(head, tail, total_bytes)) >= 1
    assert work_of(facts_of(head)) >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(
    ["messages", "max_tokens", "media_io_kwargs", "mm_processor_kwargs", "prompt"], JSON)))  # fmt: skip
def test_any_request_has_a_price(request):
    assert work_of(facts_of(json.dumps(request).encode())) >= 1
