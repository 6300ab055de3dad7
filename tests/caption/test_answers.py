import asyncio

import msgspec
from caption_fakes import request_for

from framefleet.caption.answers import Answers
from framefleet.caption.ledger import Ledger
from framefleet.caption.step import failure
from framefleet.engine.captioner import CaptionRecord, CaptionRequest
from framefleet.errors import SeekFailed

A, B, C = (request_for(clip=f"/clips/{name}.mp4") for name in "abc")


def record_of(request: CaptionRequest, text: str = "words") -> CaptionRecord:
    return CaptionRecord(
        digest=request.digest, clip=request.clip, content_digest=request.content_digest, start_s=0, end_s=1,
        prompt=request.prompt, text=text, seconds={"total": 1.0},
    )  # fmt: skip


class Maker:
    def __init__(self) -> None:
        self.made: list[str] = []

    def of(self, request: CaptionRequest, record: CaptionRecord | None = None):
        async def make() -> CaptionRecord:
            self.made.append(request.clip)
            await asyncio.sleep(0)
            return record or record_of(request)

        return make


def answers(ledger: Ledger, *stored: CaptionRecord) -> Answers:
    statuses = {r.digest: r.status for r in stored}
    by_digest = {r.digest: r for r in stored}
    return Answers(ledger=ledger, statuses=statuses, fetch=lambda request: by_digest.get(request.digest))


def test_clips_of_equal_content_are_asked_about_once():
    async def main() -> None:
        maker = Maker()
        with Ledger(":memory:") as ledger:
            shared = answers(ledger)
            got = await asyncio.gather(*(shared.get(r, maker.of(r)) for r in (A, B, C)))
        assert maker.made == [A.clip]
        assert [r.clip for r in got] == [A.clip, B.clip, C.clip]
        assert [r.digest for r in got] == [A.digest, B.digest, C.digest]
        assert [r.attempts for r in got] == [1, 0, 0]
        assert {r.text for r in got} == {"words"}

    asyncio.run(main())


def test_other_content_window_or_prompt_is_another_question():
    async def main() -> None:
        others = [request_for(content="cd" * 16), request_for(prompt="What?"), request_for(model="other")]
        maker = Maker()
        with Ledger(":memory:") as ledger:
            shared = answers(ledger)
            await asyncio.gather(*(shared.get(r, maker.of(r)) for r in (A, *others)))
        assert len(maker.made) == 4

    asyncio.run(main())


def test_a_failure_is_not_copied():
    async def main() -> None:
        maker = Maker()
        with Ledger(":memory:") as ledger:
            shared = answers(ledger)
            failed = failure(A, SeekFailed("no"), "fake")
            first, second = await asyncio.gather(shared.get(A, maker.of(A, failed)), shared.get(B, maker.of(B)))
        assert (first.status, second.status, second.attempts) == ("failed", "ok", 1)
        assert maker.made == [A.clip, B.clip]

    asyncio.run(main())


def test_an_answer_of_an_earlier_run_is_found_through_the_ledger():
    async def main() -> None:
        maker = Maker()
        with Ledger(":memory:") as ledger:
            for request in (A, B):
                ledger.remember_content(request.clip, "etag:1", request.content_digest)
            got = await answers(ledger, record_of(A, "stored")).get(B, maker.of(B))
            assert (got.text, got.clip, got.attempts, maker.made) == ("stored", B.clip, 0, [])
            for unfit in (failure(A, SeekFailed("no"), "fake"), record_of(request_for(clip=A.clip, prompt="Other?"))):
                assert (await answers(ledger, unfit).get(B, maker.of(B))).attempts == 1
            vanished = answers(ledger, record_of(A))
            vanished.fetch = lambda request: None
            assert (await vanished.get(B, maker.of(B))).text == "words"

    asyncio.run(main())


def test_cancelling_the_first_lets_the_next_one_ask():
    async def main() -> None:
        maker = Maker()
        with Ledger(":memory:") as ledger:
            shared = answers(ledger)

            async def never() -> CaptionRecord:
                await asyncio.sleep(3600)
                raise AssertionError

            first = asyncio.create_task(shared.get(A, never))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert (await shared.get(B, maker.of(B))).attempts == 1
        assert maker.made == [B.clip]

    asyncio.run(main())


def test_the_memory_of_answers_is_bounded(monkeypatch):
    monkeypatch.setattr("framefleet.caption.answers._RECENT", 5)

    async def main() -> None:
        maker = Maker()
        with Ledger(":memory:") as ledger:
            shared = answers(ledger)
            for number in range(20):
                request = request_for(content=f"{number:032x}")
                await shared.get(request, maker.of(request))
            assert len(shared._answers) <= 6
            first = msgspec.structs.replace(A, content_digest=f"{0:032x}")
            await shared.get(first, maker.of(first))
        assert len(maker.made) == 21

    asyncio.run(main())
