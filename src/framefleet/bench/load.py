"""Load on an OpenAI-compatible endpoint: a closed loop (so many in flight) or an open one (Poisson, seeded).

The client watches itself: its share of a CPU core and how late its event loop is. Where it is what limits, the result
says so, since then nothing else in it is about the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from framefleet.bench.clips import LoadClip, Send, load_clips
from framefleet.bench.experiment import Measurement
from framefleet.bench.stats import percentile
from framefleet.engine.prompts import prompt_text
from framefleet.errors import ConfigError, EngineLost, MissingLibrary

TICK_S = 0.02
"""How often the client looks how late it is."""
MOST_CPU = 0.8
MOST_LATE_S = 0.1
"""Of the 95th percentile: beyond it, times to the first token are the client's own."""


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked, how often, for how long."""

    endpoint: str
    """Base URL, like `http://127.0.0.1:8000` (with or without `/v1`)."""
    inputs: tuple[str, ...]
    """Files, folders, patterns, URLs: the clips, asked in turn."""
    model: str = ""
    """Empty: the first model that the server lists."""
    api_key: str = ""
    """Sent as a bearer token."""
    prompt: str = "general"
    """A prompt's name or its text."""
    send: Send = "url"
    """`url` or `bytes`; see Send."""
    max_tokens: Annotated[int, Meta(ge=1)] = 64
    """Of every answer."""
    fixed_length: bool = True
    """Every answer is exactly `max_tokens` long (`ignore_eos`): else a faster arm may be one that says less."""
    concurrency: Annotated[int, Meta(ge=1)] = 16
    """Requests in flight, in a closed loop."""
    rate_per_s: Annotated[float, Meta(gt=0)] | None = None
    """Arrivals per second, in an open loop; then `concurrency` is not used."""
    spread_s: Annotated[float, Meta(ge=0)] = 0.0
    """Over how long the first requests of a closed loop begin. Those that begin together, with answers of one length,
    go on in step, wave after wave, as no busy server's do."""
    num_requests: Annotated[int, Meta(ge=1)] | None = None
    """No more than so many. None: until the time is over."""
    duration_s: Annotated[float, Meta(gt=0)] | None = None
    """No request begins later. None: until the requests are done."""
    cut: bool = False
    """When `duration_s` is over, break off what is in flight: it is in no figure. False: let it end."""
    timeout_s: Annotated[float, Meta(gt=0)] = 300.0
    """Of one request."""
    fresh: bool = True
    """No request is like another, for the server's caches (see bench.clips)."""
    seed: int = 0
    """Of the arrivals of an open loop."""
    extra_body: dict[str, Any] = {}
    """Further fields of each request."""

    def __post_init__(self) -> None:
        if self.num_requests is None and self.duration_s is None:
            raise ConfigError("a load without end", allowed="num_requests, duration_s or both")
        if self.cut and self.duration_s is None:
            raise ConfigError("nothing says when to cut the load off", remedy="duration_s")


class ClientCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator itself took."""

    cpu_share: float
    """CPU seconds per second of this process; 1 is a whole core, which is all that it can use."""
    late_mean_s: float
    late_p95_s: float
    """By how much its event loop woke late."""

    @property
    def is_bottleneck(self) -> bool:
        """The figures are the client's own: give it fewer requests, or run more clients."""
        return self.cpu_share > MOST_CPU or self.late_p95_s > MOST_LATE_S


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole load; every request is kept, in the order of ending."""

    settings: LoadSettings
    model: str
    measurements: tuple[Measurement, ...]
    wall_s: float
    steady_from_s: float
    steady_to_s: float
    """The stretch in which as many were in flight as asked; see `steady`."""
    client: ClientCost
    cache_defeat: str
    """In words."""

    @property
    def steady(self) -> tuple[Measurement, ...]:
        """The requests that ended in the steady stretch."""
        ends = ((one, one.started_s + one.total_s) for one in self.measurements)
        return tuple(one for one, end_s in ends if self.steady_from_s < end_s <= self.steady_to_s)

    @property
    def steady_s(self) -> float:
        """Length of that stretch."""
        return self.steady_to_s - self.steady_from_s

    def summary(self) -> dict[str, Any]:
        """Rates and percentiles of the steady stretch, for people and JSON."""
        good = [one for one in self.steady if not one.error]
        errors: dict[str, int] = {}
        for one in self.measurements:
            if one.error:
                errors[one.error] = errors.get(one.error, 0) + 1
        return {
            "requests": len(self.measurements),
            "steady_requests": len(self.steady),
            "steady_s": round(self.steady_s, 3),
            "requests_per_s": len(good) / self.steady_s if self.steady_s > 0 else 0.0,
            "tokens_per_s": sum(one.output_tokens for one in good) / self.steady_s if self.steady_s > 0 else 0.0,
            "ttft_s": _percentiles([one.ttft_s for one in good if one.ttft_s is not None]),
            "total_s": _percentiles([one.total_s for one in good]),
            "errors": errors,
            "client": msgspec.to_builtins(self.client) | {"is_bottleneck": self.client.is_bottleneck},
            "cache_defeat": self.cache_defeat,
        }


async def run_load(settings: LoadSettings, clips: Sequence[LoadClip] | None = None) -> LoadResult:
    """Run it to its end. `clips`: as `load_clips` gave them, to read them once for many loads.

    Raises SourceError for clips, EngineLost for a server that is not there, MissingLibrary without aiohttp. Failed
    requests are in the result.
    """
    chosen = list(clips) if clips is not None else await asyncio.to_thread(load_clips, settings.inputs, settings.send)
    async with _session(settings) as session:
        model = settings.model or await _first_model(session, settings)
        run = _Run(settings, chosen, model, session)
        cpu_s, began_s = time.process_time(), run.began_s
        async with _watched_loop() as late_s:
            await run.to_its_end()
        wall_s = time.perf_counter() - began_s
        cpu_share = (time.process_time() - cpu_s) / wall_s
    steady_from_s, steady_to_s = _steady(run.measurements, run.last_start_s, settings)
    return LoadResult(
        settings=settings, model=model, measurements=tuple(run.measurements), wall_s=wall_s,
        steady_from_s=steady_from_s, steady_to_s=steady_to_s, cache_defeat=_cache_defeat(settings, chosen),
        client=ClientCost(
            cpu_share=cpu_share, late_mean_s=sum(late_s) / max(len(late_s), 1),
            late_p95_s=percentile(late_s, 0.95) if late_s else 0.0,
        ),
    )  # fmt: skip


def arrivals(rate_per_s: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which the requests of an open loop are due: the first at once, the gaps exponential."""
    rng, due_s = random.Random(seed), 0.0
    while True:
        yield due_s
        due_s += rng.expovariate(rate_per_s)


class _Run:
    """Requests under way, and those that ended."""

    def __init__(self, settings: LoadSettings, clips: Sequence[LoadClip], model: str, session: Any) -> None:
        from framefleet.bench.chat_stream import Question

        self.settings, self.session = settings, session
        self.measurements: list[Measurement] = []
        self.last_start_s = 0.0
        self.began_s = time.perf_counter()
        self._id = uuid.uuid4().hex[:12]
        self._question = Question(_fields(settings, model), prompt_text(settings.prompt), is_fresh=settings.fresh)
        self._left = self._in_turn(clips)

    async def to_its_end(self) -> None:
        """In the way and for the time that the settings say."""
        rate_per_s, limit_s = self.settings.rate_per_s, self.settings.duration_s if self.settings.cut else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await (self.closed_loop() if rate_per_s is None else self.open_loop(rate_per_s))

    async def closed_loop(self) -> None:
        """As many at a time as asked, until there are no more to begin."""
        step_s = self.settings.spread_s / self.settings.concurrency
        await asyncio.gather(*(self._one_after_another(n * step_s) for n in range(self.settings.concurrency)))

    async def open_loop(self, rate_per_s: float) -> None:
        """Each begins at its time, whatever became of those before."""
        due_s = arrivals(rate_per_s, self.settings.seed)
        next(due_s)
        async with asyncio.TaskGroup() as tasks:
            for number, clip in self._left:
                tasks.create_task(self._ask(number, clip))
                await asyncio.sleep(max(0.0, self.began_s + next(due_s) - time.perf_counter()))

    def _in_turn(self, clips: Sequence[LoadClip]) -> Iterator[tuple[int, LoadClip]]:
        for number, clip in enumerate(itertools.cycle(clips)):
            elapsed_s = time.perf_counter() - self.began_s
            if number == self.settings.num_requests or elapsed_s >= (self.settings.duration_s or float("inf")):
                return
            self.last_start_s = elapsed_s
            yield number, clip

    async def _one_after_another(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        for number, clip in self._left:  # one iterator for all: each takes what is next
            await self._ask(number, clip)

    async def _ask(self, number: int, clip: LoadClip) -> None:
        from framefleet.bench.chat_stream import ask

        body = self._question.parts(clip, number, self._id)
        url = _url(self.settings, "/v1/chat/completions")
        timeout_s = self.settings.timeout_s
        self.measurements.append(await ask(self.session, url, body, clip, began_s=self.began_s, timeout_s=timeout_s))


@asynccontextmanager
async def _watched_loop() -> AsyncIterator[list[float]]:
    """Collects by how many seconds the event loop wakes late."""
    late_s: list[float] = []

    async def watch() -> None:
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s.append(max(0.0, time.perf_counter() - due_s))

    watching = asyncio.create_task(watch())
    try:
        yield late_s
    finally:
        watching.cancel()


@asynccontextmanager
async def _session(settings: LoadSettings) -> AsyncIterator[Any]:
    try:
        import aiohttp
    except ImportError as error:
        raise MissingLibrary("a load needs aiohttp", given=str(error), remedy="framefleet[serve]") from error
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    ) as session:
        yield session


async def _first_model(session: Any, settings: LoadSettings) -> str:
    url = _url(settings, "/v1/models")
    try:
        async with asyncio.timeout(10), session.get(url) as response:
            return str((await response.json())["data"][0]["id"])
    except Exception as error:
        raise EngineLost(
            "no model is served there", given=f"{url}: {type(error).__name__} {error}", remedy="see that it is up"
        ) from error


def _url(settings: LoadSettings, path: str) -> str:
    return settings.endpoint.rstrip("/").removesuffix("/v1") + path


def _fields(settings: LoadSettings, model: str) -> dict[str, Any]:
    length = {"ignore_eos": True} if settings.fixed_length else {}
    return {"model": model, "max_tokens": settings.max_tokens, "temperature": 0, **length, **settings.extra_body}


def _steady(measurements: Sequence[Measurement], last_start_s: float, settings: LoadSettings) -> tuple[float, float]:
    """From the end of the first round to the last end before requests run out; the whole where that is too little."""
    ends = sorted(one.started_s + one.total_s for one in measurements)
    if not ends:
        return 0.0, 0.0
    first_round = settings.concurrency if settings.rate_per_s is None else 0
    before_drain = [end for end in ends if end <= last_start_s + 1e-3]
    if len(before_drain) < 2 * max(first_round, 1):
        return 0.0, ends[-1]
    return before_drain[first_round - 1] if first_round else 0.0, before_drain[-1]


def _percentiles(values: list[float]) -> dict[str, float] | None:
    return {f"p{share}": percentile(values, share / 100) for share in (50, 95, 99)} if values else None


def _cache_defeat(settings: LoadSettings, clips: Sequence[LoadClip]) -> str:
    if not settings.fresh:
        return "none: a server that caches answers from its cache"
    num_fresh = sum(clip.can_be_fresh for clip in clips)
    if num_fresh == len(clips):
        return "each request has its own uuid and its own bytes"
    bytes_too = f", {num_fresh} of {len(clips)} clips their own bytes" if num_fresh else ""
    return f"each request has its own uuid (vLLM){bytes_too}; caches that look at content are not defeated"
