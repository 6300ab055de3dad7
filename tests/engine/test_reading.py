import asyncio
import base64

import pytest
from http_server import serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route
from tiny_models import some_frames

from framefleet.decode.options import DecodeOptions
from framefleet.engine.openai_wire import frames_url
from framefleet.engine.reading import MayOpen, VideoReader, with_media_io
from framefleet.errors import CaptionRejected, SourceNotFound, SourceTooLarge, SourceUnavailable

POLICY = DecodeOptions(rule="qwen3_vl", fps=2.0, min_frames=4, max_frames=16, total_pixels=10**6, size_factor=32)


class Pool:
    """Keeps what it was asked to decode."""

    def __init__(self):
        self.asked = []

    async def decode(self, source, options=None):
        self.asked.append((source, options))
        return some_frames(2)


def read(url, media_io=None, may_open=None):
    pool = Pool()
    frames = asyncio.run(VideoReader(POLICY, pool, may_open).read(url, media_io or {}))
    return frames, pool.asked


def test_bytes_are_decoded_under_the_models_policy():
    url = "data:video/mp4;base64," + base64.b64encode(b"clip").decode()
    _, [(source, options)] = read(url)
    assert (source.content, options) == (b"clip", POLICY)


def test_jpeg_frames_need_no_decoder():
    frames, asked = read(frames_url(some_frames(3)), {"fps": 2})
    assert len(frames) == 3
    assert asked == []


def test_files_only_inside_the_allowed_folder(tmp_path):
    (tmp_path / "in").mkdir()
    inside, outside = tmp_path / "in" / "a b#?é.mp4", tmp_path / "out.mp4"
    for clip in (inside, outside):
        clip.write_bytes(b"x")
    link = tmp_path / "in" / "link.mp4"
    link.symlink_to(outside)
    may = MayOpen(local_folder=str(tmp_path / "in"))
    _, [(source, _)] = read(inside.as_uri(), may_open=may)
    assert source.location == str(inside)
    sneaky = (tmp_path / "in").as_uri() + "/..%2Fout.mp4"
    for url in (outside.as_uri(), link.as_uri(), sneaky, f"file://host{inside}"):
        with pytest.raises((CaptionRejected, SourceNotFound)):
            read(url, may_open=may)
    with pytest.raises(CaptionRejected, match="allowed-local-media-path"):
        read(inside.as_uri())
    with pytest.raises(SourceNotFound):
        read((tmp_path / "in" / "none.mp4").as_uri(), may_open=may)


def test_addresses_only_of_allowed_hosts():
    def clip(request):
        return PlainTextResponse("0123456789")

    def away(request):
        return RedirectResponse("http://127.0.0.2/secret")

    def missing(request):
        return PlainTextResponse("no", 404)

    app = Starlette(routes=[Route("/clip.mp4", clip), Route("/away", away), Route("/missing", missing)])
    with serving(app) as url:
        may = MayOpen(domains=("127.0.0.1",))
        _, [(source, _)] = read(f"{url}/clip.mp4", may_open=may)
        assert source.content == b"0123456789"
        for path in ("away", "missing"):
            with pytest.raises(SourceUnavailable):
                read(f"{url}/{path}", may_open=may)
        with pytest.raises(SourceTooLarge):
            read(f"{url}/clip.mp4", may_open=MayOpen(domains=("127.0.0.1",), max_fetch_bytes=5))
        with pytest.raises(CaptionRejected, match="allowed-media-domains"):
            read(f"{url}/clip.mp4")
    with pytest.raises(SourceUnavailable):
        read(f"{url}/clip.mp4", may_open=may)


@pytest.mark.parametrize("url", ["", "ftp://x/y", "/etc/passwd", "data:video/mp4,xx", "data:video/mp4;base64,!!"])
def test_what_is_no_video_url_is_refused(url):
    with pytest.raises(CaptionRejected):
        read(url)


def test_a_request_may_change_the_sampling():
    uniform = with_media_io(POLICY, {"num_frames": 8})
    assert (uniform.num_frames, uniform.rule, uniform.fps) == (8, None, None)
    assert uniform.total_pixels == POLICY.total_pixels
    faster = with_media_io(POLICY, {"fps": 4, "max_frames": 32, "max_duration": 10.0})
    assert (faster.rule, faster.fps, faster.max_frames, faster.max_duration_s) == ("qwen3_vl", 4.0, 32, 10.0)
    assert with_media_io(POLICY, {}) == POLICY


@pytest.mark.parametrize("media_io", [{"num_frame": 8}, {"fps": "fast"}, {"video_backend": "opencv"}])
def test_unknown_or_wrong_fields_are_refused(media_io):
    with pytest.raises(CaptionRejected, match=r"media_io_kwargs\.video"):
        with_media_io(POLICY, media_io)
