import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest

from framefleet.caption.remote import remote_content_digest
from framefleet.errors import SourceNotFound, SourceUnavailable


class Server(BaseHTTPRequestHandler):
    """`/STATUS/ETAG`, answered to HEAD only."""

    def do_HEAD(self) -> None:
        _, status, etag = self.path.split("/")
        if status == "302":
            self.send_response(302)
            self.send_header("Location", f"/200/{etag}")
        else:
            self.send_response(int(status))
            if etag:
                self.send_header("ETag", f'"{etag}"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_url_and_its_version_stand_for_the_content(base: str):
    digests = {remote_content_digest(f"{base}/{path}") for path in ("200/a", "200/b", "200/", "302/a", "405/")}
    assert len(digests) == 5
    assert remote_content_digest(f"{base}/200/a") in digests
    assert all(len(digest) == 32 for digest in digests)


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, SourceNotFound), (410, SourceNotFound), (403, SourceUnavailable), (503, SourceUnavailable)],
)
def test_what_the_server_says_becomes_an_error(base: str, status: int, error: type[Exception]):
    with pytest.raises(error, match=f"HTTP {status}"):
        remote_content_digest(f"{base}/{status}/x")


def test_a_server_that_is_not_there_is_for_later():
    with pytest.raises(SourceUnavailable):
        remote_content_digest("http://127.0.0.1:9/x.mp4")


def test_objects_change_with_their_version():
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a.mp4", b"one")
    try:
        before = remote_content_digest("memory://bucket/a.mp4")
        assert remote_content_digest("memory://bucket/a.mp4") == before
        memory.pipe("/bucket/a.mp4", b"three")
        assert remote_content_digest("memory://bucket/a.mp4") != before
        with pytest.raises(SourceNotFound):
            remote_content_digest("memory://bucket/b.mp4")
    finally:
        memory.rm("/bucket", recursive=True)
    with pytest.raises(SourceUnavailable):
        remote_content_digest("nosuchscheme://bucket/a.mp4")
