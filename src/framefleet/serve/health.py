"""Looks at every replica: /health often, and a real tiny request where nothing was answered for a while.

An API server whose engine is dead may go on saying that it is healthy; a question that needs the engine tells.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from typing import Any

import aiohttp

from framefleet.serve.admission import Admission
from framefleet.serve.dispatch import Dispatch
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import Replica, ReplicaState

FAILED_PROBES = 2
"""In a row, and the replica is lost."""
_WAKE_S = 0.25
_log = logging.getLogger(__name__)
_WATCHED = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.DRAINED, ReplicaState.LOST)


class _Seen:
    """Of one replica."""

    def __init__(self) -> None:
        self.num_bad_looks = 0
        self.num_bad_probes = 0
        self.is_proven = False
        self.probed_s = float("-inf")
        self.probing: asyncio.Task[None] | None = None


class HealthWatch:
    """`async with HealthWatch(...):` watches until the block ends."""

    def __init__(
        self, session: aiohttp.ClientSession, dispatch: Dispatch, admission: Admission, settings: ProxySettings
    ) -> None:
        self._session, self._dispatch, self._admission, self._settings = session, dispatch, admission, settings
        self._seen: dict[str, _Seen] = {}
        """By address: a process that was started anew has another, and must prove itself anew."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> HealthWatch:
        self._start(self._for_ever())
        self._start(self._wake())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look(self, replica: Replica) -> None:
        """One look, and what follows from it."""
        seen = self._seen.setdefault(replica.base_url, _Seen())
        started_s = self._dispatch.now_s()
        try:
            is_good = await self._is_healthy(replica)
        except TimeoutError:
            is_good = self._has_answered_since(started_s, replica)
        seen.num_bad_looks = 0 if is_good else seen.num_bad_looks + 1
        if seen.num_bad_looks:
            seen.is_proven = seen.is_proven and seen.num_bad_looks < self._settings.unhealthy_after
        else:
            self._probe_if_due(replica, seen)
        self._conclude(replica, seen)

    async def _for_ever(self) -> None:
        while True:
            watched = [replica for replica in self._dispatch.fleet.replicas() if replica.state in _WATCHED]
            for outcome in await asyncio.gather(*map(self.look, watched), return_exceptions=True):
                if isinstance(outcome, Exception):
                    _log.error("a look at a replica failed", exc_info=outcome)
            await asyncio.sleep(self._settings.health_s)

    async def _wake(self) -> None:
        """Circuits half open with time; nobody else would tell those who wait."""
        while True:
            await asyncio.sleep(_WAKE_S)
            self._admission.wake()

    def _conclude(self, replica: Replica, seen: _Seen) -> None:
        if all(replica.base_url != now.base_url for now in self._dispatch.fleet.replicas()):
            return  # what was looked at is gone
        is_lost = seen.num_bad_looks >= self._settings.unhealthy_after or seen.num_bad_probes >= FAILED_PROBES
        is_good = not seen.num_bad_looks and not seen.num_bad_probes and (seen.is_proven or not self._settings.probe_s)
        if is_lost or is_good:
            self._dispatch.observe(replica.name, is_answering=is_good)
            self._admission.wake()

    async def _is_healthy(self, replica: Replica) -> bool:
        """A server without /health (404) is taken at its word that it is there. Raises TimeoutError."""
        timeout = aiohttp.ClientTimeout(total=self._settings.health_timeout_s)
        try:
            async with self._session.get(f"{replica.base_url}/health", timeout=timeout) as response:
                return response.status < 500
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError):
            return False

    def _has_answered_since(self, started_s: float, replica: Replica) -> bool:
        """A replica that is slow to be looked at because it is busy answering is well."""
        return self._dispatch.answered_s.get(replica.name, float("-inf")) >= started_s

    def _probe_if_due(self, replica: Replica, seen: _Seen) -> None:
        probe_s, now_s = self._settings.probe_s, self._dispatch.now_s()
        if not probe_s or (seen.probing and not seen.probing.done()):
            return
        if (
            seen.is_proven
            and not seen.num_bad_probes
            and now_s - self._dispatch.answered_s.get(replica.name, float("-inf")) < probe_s
        ):
            return
        if now_s - seen.probed_s >= (
            probe_s if seen.is_proven and not seen.num_bad_probes else self._settings.health_s
        ):
            seen.probed_s = now_s
            seen.probing = self._start(self._probe(replica, seen))

    async def _probe(self, replica: Replica, seen: _Seen) -> None:
        started_s = self._dispatch.now_s()
        is_good = await self._answers(replica) or self._has_answered_since(started_s, replica)
        seen.num_bad_probes = 0 if is_good else seen.num_bad_probes + 1
        seen.is_proven = is_good or (seen.is_proven and seen.num_bad_probes < FAILED_PROBES)
        if is_good:
            self._dispatch.circuits[replica.name].succeeded()
        self._conclude(replica, seen)

    async def _answers(self, replica: Replica) -> bool:
        """Whether it answers a question about a tiny clip: also "no" (4xx) is an answer."""
        timeout = aiohttp.ClientTimeout(total=self._settings.probe_timeout_s)
        key = self._settings.upstream_api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._session.get(f"{replica.base_url}/v1/models", timeout=timeout, headers=headers) as response:
                if response.status >= 400:
                    return response.status < 500
                model = _first_model(await response.json(content_type=None))
            async with self._session.post(
                f"{replica.base_url}/v1/chat/completions",
                json=tiny_question(model),
                timeout=timeout,
                headers={**headers, "Content-Type": "application/json"},  # the session adds none by itself
            ) as response:
                await response.read()
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def tiny_question(model: str) -> dict[str, Any]:
    """One token about two grey frames of 64x64."""
    clip = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join([_grey_jpeg()] * 2)}"}}
    content = [{"type": "text", "text": "."}, clip]
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def _grey_jpeg() -> str:
    from PIL import Image

    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(jpeg, "JPEG")
    return base64.b64encode(jpeg.getvalue()).decode()


def _first_model(models: Any) -> str:
    try:
        return str(models["data"][0]["id"])
    except (LookupError, TypeError):
        return ""
