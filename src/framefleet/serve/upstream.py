"""One attempt of a request at one replica, up to the first piece of the answer. Everything of aiohttp is in here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import aiohttp
from yarl import URL

from framefleet.errors import EngineLost
from framefleet.serve.dispatch import Assignment
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.upload import Upload

KEEP_ALIVE_S = 4
"""Less than uvicorn's 5: a connection that the replica has just closed must not be taken for a fault of it."""
_SHOWN_BYTES = 64 * 1024
_READ_BUFFER_BYTES = 256 * 1024

Reason = Literal["connect", "lost", "gone", "5xx", "busy", "first_byte"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to whichever replica."""

    method: str
    target: str
    """Path and query, as the client wrote them."""
    headers: list[tuple[str, str]]
    upload: Upload
    whole: bytes | None
    """The body where it is small."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt without an answer that the client should have yet."""

    reason: Reason
    message: str
    status: int = 502
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    """Of the replica's answer, where it gave one."""

    @property
    def may_be_retried(self) -> bool:
        """Not when the replica has worked on it for as long as anybody may: the next one would do the same work."""
        return self.reason != "first_byte"

    @property
    def is_lost_connection(self) -> bool:
        """Nothing is known of the replica's opinion: the same one may be asked again."""
        return self.reason in ("connect", "lost")


class Answer:
    """A replica's answer, from its first piece on."""

    def __init__(self, response: aiohttp.ClientResponse, first: bytes, between_bytes_s: float) -> None:
        self.status = response.status
        self.headers = response.raw_headers
        self.is_event_stream = response.content_type == "text/event-stream"
        self._response, self._first, self._between_bytes_s = response, first, between_bytes_s

    def is_over(self, piece: bytes) -> bool:
        """Whether clients take the stream for ended with this piece, though its connection is not."""
        return self.is_event_stream and piece.rstrip().endswith(b"data: [DONE]")

    async def pieces(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Bytes, and whether they are the last. Raises EngineLost when it is cut, or stops for too long."""
        content, piece = self._response.content, self._first
        try:
            while not content.at_eof():
                yield piece, False
                async with asyncio.timeout(self._between_bytes_s):
                    piece = await content.readany()
        except TimeoutError:
            raise EngineLost("the replica stopped in the middle of its answer") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineLost("the replica's answer was cut off", given=f"{type(error).__name__}: {error}") from error
        yield piece, True

    def close(self) -> None:
        """A connection whose answer was not read to its end is not used again."""
        self._response.close()


class _Patience:
    """For the first byte. It does not run while the client is what keeps us waiting."""

    def __init__(self, deadline: asyncio.Timeout, limit_s: float) -> None:
        self._deadline, self._limit_s = deadline, limit_s
        self.is_over = False

    def start(self) -> None:
        """Anew."""
        self._set(asyncio.get_running_loop().time() + self._limit_s)

    def hold(self) -> None:
        """No limit for now."""
        self._set(None)

    def end(self) -> None:
        """At once."""
        self._set(0)
        self.is_over = True

    def _set(self, when_s: float | None) -> None:
        if not self.is_over and not self._deadline.expired():
            self._deadline.reschedule(when_s)


class Upstream:
    """The connections to all replicas. `async with Upstream(settings) as upstream: ...`."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Upstream:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            read_bufsize=_READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def attempt(self, request: Request, assignment: Assignment) -> Answer | Failure:
        """Send it. The answer is the caller's to close. Raises what the upload failed by."""
        response: aiohttp.ClientResponse | None = None
        is_handed_on = False
        try:
            async with asyncio.timeout(None) as deadline:
                patience = _Patience(deadline, self._settings.first_byte_s)
                assignment.waits(patience.end)
                response = await self._send(request, assignment, patience)
                outcome = await self._judged(response)
                patience.is_over = True
            is_handed_on = isinstance(outcome, Answer)
            return outcome
        except TimeoutError:
            return self._late(assignment, is_waiting=deadline.expired())
        except (aiohttp.ClientError, ConnectionError) as error:
            if request.upload.failure is not None:
                raise request.upload.failure from None
            reason: Reason = "connect" if isinstance(error, aiohttp.ClientConnectorError) else "lost"
            return Failure(reason, f"{type(error).__name__}: {error}")
        finally:
            assignment.answers()
            if response is not None and not is_handed_on:
                response.close()

    async def _send(self, request: Request, assignment: Assignment, patience: _Patience) -> aiohttp.ClientResponse:
        return await self.session.request(
            request.method,
            URL(assignment.replica.base_url + request.target, encoded=True),
            headers=[*request.headers, *_length_of(request)],
            data=_body(request, patience),
            allow_redirects=False,
        )

    async def _judged(self, response: aiohttp.ClientResponse) -> Answer | Failure:
        if response.status >= 500 or response.status == 429:
            body = await _start_of(response.content)
            reason: Reason = "busy" if response.status == 429 else "5xx"
            return Failure(reason, f"HTTP {response.status}", response.status, response.raw_headers, body)
        return Answer(response, await response.content.readany(), self._settings.between_bytes_s)

    def _late(self, assignment: Assignment, *, is_waiting: bool) -> Failure:
        if not is_waiting:
            return Failure("connect", f"no connection in {self._settings.connect_s:g} s")
        if assignment.is_replica_gone:
            return Failure("gone", "the replica does not answer any more")
        return Failure("first_byte", f"no answer in {self._settings.first_byte_s:g} s", 504)


async def _start_of(content: aiohttp.StreamReader) -> bytes:
    """What a client is shown of an error."""
    start = b""
    while len(start) < _SHOWN_BYTES and (part := await content.read(_SHOWN_BYTES - len(start))):
        start += part
    return start


def _body(request: Request, patience: _Patience) -> bytes | AsyncIterator[bytes] | None:
    patience.start()
    return _watched(request.upload, patience) if request.whole is None else request.whole or None


async def _watched(upload: Upload, patience: _Patience) -> AsyncIterator[bytes]:
    """The upload. A replica that takes no more of it is as late as one that does not answer; a slow client is not."""
    patience.hold()
    async for chunk in upload.chunks():
        patience.start()
        yield chunk
        patience.hold()
    patience.start()


def _length_of(request: Request) -> list[tuple[str, str]]:
    if request.whole is None and request.upload.declared_bytes is not None:
        return [("content-length", str(request.upload.declared_bytes))]
    return []
