"""The life of one request: let in, priced, queued, sent (again), passed back, accounted for.

Nothing is sent twice once the client has seen a byte. A 4xx is the client's and says nothing against the replica. A 5xx
is tried elsewhere: if another replica answers, the first is to blame; if all say 5xx, the request is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec

from framefleet.errors import EngineBusy, EngineLost, FramefleetError, ReplicaError, SourceTooLarge, SourceUnavailable
from framefleet.serve.admission import Admission, Priority
from framefleet.serve.api_keys import ApiKey, ApiKeys
from framefleet.serve.cost import HEAD_BYTES, facts_of, facts_of_ends, work_of
from framefleet.serve.dispatch import Assignment, Dispatch
from framefleet.serve.http_headers import end_to_end, for_replica, request_id_of, value_of
from framefleet.serve.proxy_metrics import ProxyMetrics
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.request_account import RequestAccount
from framefleet.serve.upload import SMALL_BYTES, DiskRoom, Spool, Upload
from framefleet.serve.upstream import Answer, Failure, Request, Upstream
from framefleet.units import format_bytes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LINGER_S = 2
_AGAIN_S = 0.1
_LOOK_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Core:
    """What all requests share."""

    settings: ProxySettings
    dispatch: Dispatch
    admission: Admission
    keys: ApiKeys
    upstream: Upstream
    metrics: ProxyMetrics
    room: DiskRoom


class Exchange:
    """One request. `await Exchange(core, scope, receive, send).run()`."""

    def __init__(self, core: Core, scope: Scope, receive: Receive, send: Send) -> None:
        self.core, self.scope, self._receive, self._send = core, scope, receive, send
        self.told = RequestAccount(request_id_of(scope["headers"]), scope["path"])
        settings = core.settings
        declared = value_of(scope["headers"], b"content-length")
        self.upload = Upload(
            Spool(settings.spool_memory_bytes, core.room, settings.spool_folder),
            declared_bytes=int(declared) if declared.isdigit() else None,
        )
        self._head = b""
        self._current: Assignment | None = None
        self._has_started = False

    async def run(self) -> None:
        """Answer it. A client that leaves ends everything done for it."""
        working = asyncio.create_task(self._work())
        arriving = asyncio.create_task(self._arrive())
        try:
            await asyncio.wait({working, arriving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            arriving.cancel()
            await asyncio.wait({working, arriving})
            self.upload.forget()
            self.told.received_bytes = self.upload.num_bytes
            self.told.close(self.core.metrics)
        for task in (working, arriving):
            if not task.cancelled():
                task.result()

    async def _arrive(self) -> None:
        """Take in the body; return when the client has gone."""
        try:
            if not await self._take_in():
                return
        except TimeoutError:
            given = f"nothing for {self.core.settings.client_idle_s:g} s"
            self.upload.fail(SourceUnavailable("the upload stopped", given=given))
        except SourceTooLarge as error:
            self.upload.fail(error)
        while (message := await self._receive())["type"] != "http.disconnect":
            if not message.get("more_body", False):
                self.upload.finish()

    async def _take_in(self) -> bool:
        """Whether the client is still there."""
        limit_bytes, is_more = self.core.settings.max_body_bytes, True
        if (self.upload.declared_bytes or 0) > limit_bytes:
            raise _too_large(self.upload.declared_bytes or 0, limit_bytes)
        while is_more:
            async with asyncio.timeout(self.core.settings.client_idle_s):
                message = await self._receive()
            if message["type"] == "http.disconnect":
                return False
            if chunk := message.get("body", b""):
                if self.upload.num_bytes + len(chunk) > limit_bytes:
                    raise _too_large(self.upload.num_bytes + len(chunk), limit_bytes)
                await self.upload.feed(chunk)
            is_more = message.get("more_body", False)
        self.upload.finish()
        if not self.upload.is_small:  # its end may tell the frames that its head did not
            self.told.work = self._price()
            if self._current:
                self._current.settle(self.told.work)
        return True

    async def _work(self) -> None:
        try:
            async with asyncio.timeout(self.core.settings.total_s):
                await self._let_in()
        except TimeoutError:
            given = f"{self.core.settings.total_s:g} s"
            await self._refuse(ReplicaError("no answer within the limit of a request", given=given), 504, end="failed")
        except FramefleetError as error:
            await self._refuse(error, status_of(error))
        except Exception as error:  # noqa: BLE001 - the client gets an answer whatever it is
            _log.exception("a fault of framefleet's own, request %s", self.told.request_id)
            await self._refuse(ReplicaError(f"{type(error).__name__}: {error}"), 500, end="failed")

    async def _let_in(self) -> None:
        key = self.core.keys.who(value_of(self.scope["headers"], b"authorization"))
        if key is None:
            await self._refuse(ReplicaError("wrong or missing API key"), 401)
            return
        self.told.key, self.told.priority = key.name, self._priority(key)
        with self.core.keys.running(key):
            self._head = await self.upload.head()
            self.told.work = self._price() if self.scope["method"] == "POST" else 0
            await self._queue(self._request())

    def _priority(self, key: ApiKey) -> Priority:
        asked = value_of(self.scope["headers"], b"x-framefleet-priority").lower()
        asked = asked if asked in ("live", "batch") else self.core.settings.default_priority
        return max(Priority[asked.upper()], Priority[key.priority.upper()])

    def _price(self) -> int:
        if self.upload.is_small:
            return work_of(facts_of(self._head))
        total_bytes = self.upload.declared_bytes or self.upload.num_bytes
        return work_of(facts_of_ends(self._head[:HEAD_BYTES], self.upload.tail, total_bytes))

    def _request(self) -> Request:
        client = (self.scope.get("client") or ("",))[0]
        headers = for_replica(
            self.scope["headers"],
            request_id=self.told.request_id,
            client=client,
            upstream_key=self.core.settings.upstream_api_key,
            hides_key=self.core.keys.are_required,
        )
        query = self.scope.get("query_string", b"").decode("latin-1")
        target = self.scope["path"] + (f"?{query}" if query else "")
        whole = self._head if self.upload.is_small else None
        return Request(self.scope["method"], target, headers, self.upload, whole)

    async def _queue(self, request: Request) -> None:
        started_s = time.perf_counter()
        try:
            async with self.core.admission.admitted(self.told.priority):
                self.told.queue_s = time.perf_counter() - started_s
                await self._forward(request)
        except EngineBusy:
            if self.core.dispatch.capacity():
                raise
            raise ReplicaError("no replica takes work now", remedy="later") from None

    async def _forward(self, request: Request) -> None:
        """Try replicas until one answers, or there is no use in trying."""
        failed: list[tuple[Assignment, Failure]] = []
        while True:
            assignment = await self._assigned(failed)
            if assignment is None:
                break
            with assignment:
                self._current = assignment
                outcome = await self._attempt(request, assignment, failed)
                if outcome is None:
                    return
            failed.append((assignment, outcome))
            self.told.attempts.append(f"{assignment.replica.name}:{outcome.reason}")
            if not (
                outcome.may_be_retried
                and len(failed) < self.core.settings.max_attempts
                and self.upload.may_be_read_again
            ):
                break
        await self._give_up(failed)

    async def _assigned(self, failed: list[tuple[Assignment, Failure]]) -> Assignment | None:
        """The next replica. None when only those are left that have failed, and might not fail again."""
        dispatch, work = self.core.dispatch, self.told.work
        if not failed:
            until_s = time.perf_counter() + self.core.settings.queue_timeout_s
            while not (assignment := dispatch.pick(work)):
                if time.perf_counter() > until_s:
                    raise ReplicaError("no replica takes work now", remedy="later")
                await asyncio.sleep(_LOOK_S)
            return assignment
        if assignment := dispatch.pick(work, but={one.replica.name for one, _ in failed}):
            return assignment
        if not failed[-1][1].is_lost_connection:
            return None
        await asyncio.sleep(_AGAIN_S * len(failed))
        return dispatch.pick(work)

    async def _attempt(
        self, request: Request, assignment: Assignment, failed: list[tuple[Assignment, Failure]]
    ) -> Failure | None:
        sent_s = time.perf_counter()
        outcome = await self.core.upstream.attempt(request, assignment)
        if isinstance(outcome, Failure):
            if outcome.reason not in ("5xx", "busy"):
                self._blame(assignment, outcome.reason)
            return outcome
        try:
            self.told.first_byte_s = time.perf_counter() - sent_s
            self.core.metrics.first_byte.labels(assignment.replica.name).observe(self.told.first_byte_s)
            assignment.begins()
            self._blame_those_before(failed)
            await self._pass_back(outcome, assignment)
        finally:
            outcome.close()
        return None

    async def _pass_back(self, answer: Answer, assignment: Assignment) -> None:
        self.told.status, self.told.replica = answer.status, assignment.replica.name
        self.upload.forget()
        await self._start(answer.status, [*end_to_end(answer.headers), *self._our_headers(assignment.replica.name)])
        try:
            async for piece, is_last in answer.pieces():
                self.told.sent_bytes += len(piece)
                if is_last or answer.is_over(piece):
                    self.told.end = "answered"  # a client may leave now
                await self._send({"type": "http.response.body", "body": piece, "more_body": not is_last})
        except EngineLost as error:
            self.told.end = "cut"
            self._blame(assignment, "cut")
            if answer.is_event_stream:
                await self._send(
                    {
                        "type": "http.response.body",
                        "body": b"data: " + _error_json(error, 502) + b"\n\n",
                        "more_body": True,
                    }
                )
            # No last piece follows: the server breaks the connection, so that no half answer looks whole.
        finally:
            if self.told.end == "answered":
                assignment.succeeded()

    async def _give_up(self, failed: list[tuple[Assignment, Failure]]) -> None:
        """The last replica's own words where it said any."""
        if not failed:
            raise ReplicaError("no replica takes work now", remedy="later")
        assignment, last = failed[-1]
        if len({one.replica.name for one, _ in failed}) == 1:
            self._blame_those_before(failed)
        self.told.replica, self.told.end = assignment.replica.name, "failed"
        if last.body or last.headers:
            self.told.status = last.status
            headers = [*_without_length(last.headers), *self._our_headers(assignment.replica.name)]
            await self._whole(last.status, headers, last.body)
            return
        tried = ", ".join(self.told.attempts)
        error = EngineLost("no replica answered", given=f"{last.message} ({tried})", remedy="again later")
        await self._refuse(error, last.status, end="failed")

    def _blame(self, assignment: Assignment, reason: str) -> None:
        assignment.failed()
        self.core.metrics.failures.labels(assignment.replica.name, reason).inc()

    def _blame_those_before(self, failed: list[tuple[Assignment, Failure]]) -> None:
        for assignment, failure in failed:
            if failure.reason == "5xx":
                self._blame(assignment, failure.reason)

    def _our_headers(self, replica: str) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-request-id", self.told.request_id.encode()),
            (b"x-framefleet-replica", replica.encode()),
            (b"x-framefleet-attempts", str(len(self.told.attempts) + 1).encode()),
        ]

    async def _refuse(self, error: FramefleetError, status: int, *, end: str = "refused") -> None:
        """The proxy's own answer, unless one has begun."""
        self.told.end = end
        if self._has_started:
            self.told.end = "cut"
            return
        self.told.status = status
        headers = [(b"content-type", b"application/json"), (b"x-request-id", self.told.request_id.encode())]
        if status in (429, 503):
            headers.append((b"retry-after", str(self.core.admission.retry_after_s()).encode()))
        await self._whole(status, headers, _error_json(error, status))

    async def _whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """An answer, after which an upload that still comes is read and thrown away for a moment: a client that is cut
        off while it sends never gets to see the answer."""
        is_early = self.upload.failure is not None or (self.upload.declared_bytes or 0) > SMALL_BYTES
        if is_early and not self.upload.is_complete:
            headers = [*headers, (b"connection", b"close")]
        await self._start(status, [*headers, (b"content-length", str(len(body)).encode())])
        self.told.sent_bytes += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        if is_early:
            await self.upload.discard(LINGER_S)
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def status_of(error: FramefleetError) -> int:
    """The HTTP status of what the proxy itself says."""
    match error:
        case SourceTooLarge():
            return 413
        case SourceUnavailable():
            return 408
        case EngineBusy():
            return 429
        case _:
            return 503


def _too_large(num_bytes: int, limit_bytes: int) -> SourceTooLarge:
    return SourceTooLarge(
        "the request's body is too large",
        given=f"{format_bytes(num_bytes)} or more",
        allowed=f"{format_bytes(limit_bytes)} (max_body_bytes)",
        remedy="a URL or a file's path instead of the bytes, or fewer frames",
    )


def _error_json(error: FramefleetError, status: int) -> bytes:
    """As OpenAI's clients read it."""
    about = {"message": str(error), "type": type(error).__name__, "param": None, "code": status}
    return msgspec.json.encode({"error": about})


def _without_length(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in end_to_end(headers) if key.lower() != b"content-length"]
