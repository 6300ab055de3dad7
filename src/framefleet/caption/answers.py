"""One answer for clips of equal content: asked once, copied for every further place."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from framefleet.caption.inputs import clip_name, source_of_location
from framefleet.caption.ledger import Ledger
from framefleet.caption.step import copied
from framefleet.engine.captioner import CaptionRecord, CaptionRequest, Status

_RECENT = 4096
"""Answers remembered after they came, so that copies met soon after need no look into the store."""

Fetch = Callable[[CaptionRequest], CaptionRecord | None]


class Answers:
    """Gives a request the answer that a clip of equal content has or is about to get, else has one made.

    `fetch` reads the record of a request from the store (called in a thread).
    """

    def __init__(self, *, ledger: Ledger, statuses: Mapping[str, Status], fetch: Fetch) -> None:
        self.ledger, self.statuses, self.fetch = ledger, statuses, fetch
        self._answers: OrderedDict[str, asyncio.Future[CaptionRecord]] = OrderedDict()

    async def get(self, request: CaptionRequest, make: Callable[[], Awaitable[CaptionRecord]]) -> CaptionRecord:
        """The record for this request."""
        key = request.answer_digest
        if (earlier := self._answers.get(key)) is not None:
            record = await asyncio.shield(earlier)
            return copied(record, request) if record.status != "failed" else await make()
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            record = await self._from_store(request) or await make()
            answer.set_result(record)
            return record
        finally:
            if answer.cancel():  # none came: whoever asks next must ask the engine
                del self._answers[key]
            self._forget_oldest()

    async def _from_store(self, request: CaptionRequest) -> CaptionRecord | None:
        for place in self.ledger.places_of(request.content_digest):
            twin = msgspec.structs.replace(request, clip=clip_name(source_of_location(place)))
            if twin.clip == request.clip or self.statuses.get(twin.digest, "failed") == "failed":
                continue
            if (record := await asyncio.to_thread(self.fetch, twin)) is not None:
                return copied(record, request)
        return None

    def _forget_oldest(self) -> None:
        while len(self._answers) > _RECENT and next(iter(self._answers.values())).done():
            self._answers.popitem(last=False)
