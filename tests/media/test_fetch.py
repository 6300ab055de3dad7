"""Clips behind URLs, from a server that misbehaves in every way we know of."""

from __future__ import annotations

import gzip
import re
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pytest

import framefleet
from framefleet.errors import (
    DecodeTimeout,
    SourceCorrupt,
    SourceError,
    SourceNotFound,
    SourceTooLarge,
    SourceUnavailable,
    SourceUnsupported,
)
from framefleet.media.digest import content_digest
from framefleet.media.fetch import _is_public, open_url
from framefleet.media.limits import Deadline, FetchPolicy, ScanLimits
from framefleet.media.source import VideoSource


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, clip: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.clip = clip
        self.asked: list[tuple[str, str]] = []

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}/{path}"

    @property
    def bytes_asked(self) -> int:
        spans = (re.fullmatch(r"bytes=(\d+)-(\d+)", span) for _, span in self.asked)
        return sum(min(int(m[2]) + 1, len(self.clip)) - int(m[1]) for m in spans if m)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.server.asked.append((name, self.headers.get("Range", "")))
        getattr(self, f"serve_{name.partition('-')[0]}")(name)

    def give(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve_ranges(self, _: str, tag: str = "one") -> None:
        clip = self.server.clip
        start, stop = (int(n) for n in re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        block = clip[start : stop + 1]
        self.give(206, block, Content_Range=f"bytes {start}-{start + len(block) - 1}/{len(clip)}", ETag=tag)

    def serve_changing(self, _: str) -> None:
        self.serve_ranges("", tag=str(len(self.server.asked)))

    def serve_whole(self, _: str) -> None:
        self.give(200, self.server.clip)

    def serve_cut(self, _: str) -> None:
        self.give(200, self.server.clip[:-500], Content_Length=str(len(self.server.clip)))
        self.close_connection = True

    def serve_html(self, _: str) -> None:
        self.give(200, b"<html>please log in</html>", Content_Type="text/html; charset=utf-8")

    def serve_status(self, name: str) -> None:
        self.give(int(name.partition("-")[2]), b"no")

    def serve_redirect(self, name: str) -> None:
        self.give(302, b"", Location=name.partition("-")[2])

    def serve_elsewhere(self, _: str) -> None:
        self.give(302, b"", Location="http://10.0.0.1/clip.mp4")

    def serve_loop(self, _: str) -> None:
        self.give(302, b"", Location="/loop")

    def serve_file(self, _: str) -> None:
        self.give(302, b"", Location="file:///etc/passwd")

    def pour(self, piece: bytes, pause_s: float) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(100_000):
                self.wfile.write(piece)
                self.wfile.flush()
                time.sleep(pause_s)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve_drip(self, _: str) -> None:
        self.pour(b"x", 0.05)

    def serve_headers(self, _: str) -> None:
        try:
            for letter in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 200:
                self.wfile.write(bytes([letter]))
                time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve_gzip(self, _: str) -> None:
        self.give(200, gzip.compress(self.server.clip), Content_Encoding="gzip")

    def serve_deflate(self, _: str) -> None:
        self.give(200, zlib.compress(self.server.clip), Content_Encoding="deflate")

    def serve_bomb(self, _: str) -> None:
        self.give(200, gzip.compress(bytes(1 << 26)), Content_Encoding="gzip")

    def serve_packed(self, _: str) -> None:
        self.give(206, b"...", Content_Encoding="gzip", Content_Range="bytes 0-2/3")

    def serve_brotli(self, _: str) -> None:
        self.give(200, b"...", Content_Encoding="br")

    def serve_endless(self, _: str) -> None:
        self.pour(bytes(1 << 16), 0)

    def serve_silent(self, _: str) -> None:
        time.sleep(3)


@contextmanager
def running(clip: bytes) -> Iterator[Server]:
    server = Server(clip)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def shared_server(corpus):
    with running((corpus / "editlist_cut.mp4").read_bytes()) as server:
        yield server


@pytest.fixture
def server(shared_server):
    shared_server.asked.clear()
    return shared_server


@pytest.mark.parametrize("how", ["ranges", "whole", "redirect-ranges", "redirect-whole"])
def test_same_frames_as_from_the_file(server, corpus, how):
    here = framefleet.decode(corpus / "editlist_cut.mp4", num_frames=8)
    there = framefleet.decode(server.url(how), num_frames=8)
    assert np.array_equal(here.data, there.data)
    assert np.array_equal(here.pts_s, there.pts_s)
    assert there.stats.seconds["fetch"] > 0


def test_the_clip_is_fetched_once(server):
    framefleet.decode(server.url("whole"), num_frames=4)
    assert len(server.asked) == 1


def test_probing_reads_only_what_it_needs(corpus):
    """The index is at the end, behind 64 MiB that nobody needs."""
    clip = (corpus / "editlist_cut.mp4").read_bytes()
    at = clip.rindex(b"moov") - 4
    hole = (64 << 20) + 8
    with running(clip[:at] + hole.to_bytes(4, "big") + b"free" + bytes(hole - 8) + clip[at:]) as server:
        info = framefleet.probe(server.url("ranges"))
        assert (info.width, info.height, info.num_frames_from_header) == (176, 144, 200)
        assert server.bytes_asked < 8 << 20


def test_any_range_reads_as_the_file_does(server):
    rng = np.random.default_rng(5)
    with running(rng.bytes(5_000_000)) as big, open_url(big.url("ranges"), ScanLimits()) as file:
        for _ in range(60):
            start, length = int(rng.integers(0, 5_100_000)), int(rng.integers(1, 300_000))
            file.seek(start)
            assert file.read(length) == big.clip[start : start + length]


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("html", SourceCorrupt, "web page"),
        ("status-404", SourceNotFound, "404"),
        ("status-403", SourceNotFound, "403"),
        ("status-416", SourceCorrupt, "empty"),
        ("status-429", SourceUnavailable, "429"),
        ("status-503", SourceUnavailable, "503"),
        ("cut", SourceUnavailable, "could not be fetched"),
        ("loop", SourceUnsupported, "redirects"),
        ("file", SourceUnsupported, "only http"),
        ("redirect-status-404", SourceNotFound, "404"),
    ],
)
def test_refusals_name_the_clip_and_the_reason(server, path, error, says):
    with pytest.raises(error, match=says) as caught:
        framefleet.decode(server.url(path))
    assert f":{server.server_port}" in str(caught.value) or "file:" in str(caught.value)


@pytest.mark.parametrize("drip", ["drip", "headers"])
def test_a_drip_meets_the_deadline(server, drip):
    started_s = time.monotonic()
    with pytest.raises(DecodeTimeout, match=drip):
        framefleet.decode(server.url(drip), timeout_s=0.7)
    assert time.monotonic() - started_s < 3


def test_silence_is_given_up(server):
    limits = ScanLimits(deadline=Deadline(20), fetch=FetchPolicy(stall_s=0.3))
    with pytest.raises(SourceUnavailable, match="Timeout"):
        open_url(server.url("silent"), limits)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_clip_compressed_on_the_way_is_unpacked(server, encoding):
    want = framefleet.decode(server.clip, num_frames=4)
    assert np.array_equal(framefleet.decode(server.url(encoding), num_frames=4).data, want.data)


@pytest.mark.parametrize("name", ["packed", "brotli"])
def test_other_compression_is_refused(server, name):
    with pytest.raises(SourceUnsupported, match=r"compressed.*try: serve it as it is"):
        framefleet.decode(server.url(name))


def test_unpacking_meets_the_limit(server):
    with pytest.raises(SourceTooLarge, match="max_source_bytes"):
        framefleet.decode(server.url("bomb"), max_source_bytes=1 << 20)


def test_an_endless_body_meets_the_limit(server):
    with pytest.raises(SourceTooLarge, match="max_source_bytes"):
        framefleet.decode(server.url("endless"), max_source_bytes=1 << 20)


def test_a_promised_size_is_refused_before_it_is_read(server):
    with pytest.raises(SourceTooLarge):
        framefleet.decode(server.url("ranges"), max_source_bytes=1000)
    with pytest.raises(SourceTooLarge):
        framefleet.decode(server.url("whole"), max_source_bytes=1000)


def test_a_clip_that_changes_under_the_reader_is_noticed():
    with (
        running(bytes(3 << 20)) as server,
        open_url(server.url("changing"), ScanLimits()) as file,
    ):
        file.seek(2 << 20)
        with pytest.raises(SourceCorrupt, match="changed"):
            file.read(10)


def test_nobody_there():
    with pytest.raises(SourceUnavailable):
        framefleet.decode("http://127.0.0.1:9/clip.mp4", timeout_s=5)
    with pytest.raises(SourceError):
        framefleet.decode("http://no such host/clip.mp4", timeout_s=5)


def test_only_allowed_hosts_when_serving_others(server):
    with pytest.raises(SourceUnsupported, match="not allowed"):
        framefleet.decode(server.url("ranges"), allowed_hosts=("clips.example.org",))
    assert not server.asked


def test_no_private_address_even_under_an_allowed_name(server):
    with pytest.raises(SourceUnsupported, match="private"):
        framefleet.decode(server.url("ranges", host="localhost"), allowed_hosts=("localhost",))
    assert not server.asked


def test_redirects_meet_the_same_policy(server):
    policy = FetchPolicy(allowed_hosts=("127.0.0.1",), allow_private=True)
    assert open_url(server.url("ranges"), ScanLimits(fetch=policy)).read(4) == server.clip[:4]
    with pytest.raises(SourceUnsupported, match=r"not allowed.*10\.0\.0\.1"):
        open_url(server.url("elsewhere"), ScanLimits(fetch=policy))


def test_stores_are_closed_when_serving_others():
    with pytest.raises(SourceUnsupported, match="no such kind"):
        framefleet.decode("s3://bucket/clip.mp4", allowed_hosts=("clips.example.org",))


@pytest.mark.parametrize("url", ["ftp://host/clip.mp4", "gopher://x/y", "concat://a|b", "zip://x::http://y/z"])
def test_other_schemes_are_refused(url):
    with pytest.raises(SourceUnsupported, match="no such kind"):
        framefleet.decode(url)


def test_stores_through_fsspec(corpus):
    content = (corpus / "base.mp4").read_bytes()
    with fsspec.open("memory://clips/base.mp4", "wb") as file:
        file.write(content)
    frames = framefleet.decode("memory://clips/base.mp4", num_frames=4)
    assert np.array_equal(frames.data, framefleet.decode(content, num_frames=4).data)
    with pytest.raises(SourceNotFound):
        framefleet.decode("memory://clips/none.mp4")
    assert content_digest(VideoSource.of("memory://clips/base.mp4")) == content_digest(VideoSource.of(content))


PRIVATE = [
    "127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fc00::1", "::ffff:10.0.0.1", "0.0.0.0", "224.0.0.1",
    "100.64.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address):
    assert not _is_public(address)


def test_public_addresses():
    assert _is_public("1.1.1.1")
    assert _is_public("2606:4700::1111")
