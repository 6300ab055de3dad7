"""The bundled model as the default: right on drawn scenes, honest on anything else."""

import asyncio
import logging
from pathlib import Path

import framefleet
from framefleet.engine import open_engine
from framefleet.engine.captioner import CaptionRequest, GenerationSettings
from framefleet.engine.prompts import prompt_text
from framefleet.scenes import caption_of, sample_clips

FOREIGN = Path(__file__).parents[1] / "corpus" / "files" / "base.mp4"


def test_drawn_scenes_are_told_right_and_foreign_footage_is_noticed(caplog):
    samples = sample_clips()[:4]

    async def run():
        async with open_engine("embedded", num_threads=2) as engine:
            records = await asyncio.gather(*(caption(engine, s.path) for s in samples))
            warned_of_drawn = [r for r in caplog.records if r.levelno >= logging.WARNING]
            await caption(engine, FOREIGN)
            await caption(engine, FOREIGN)
            return records, warned_of_drawn

    with caplog.at_level(logging.INFO, "framefleet"):
        records, warned_of_drawn = asyncio.run(run())
    assert [r.text for r in records] == [caption_of(s.truth) for s in samples]
    assert {r.status for r in records} == {"ok"}
    assert warned_of_drawn == []
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "--model" in warnings[0]


async def caption(engine, path):
    frames = await asyncio.to_thread(framefleet.decode, path, engine.frame_policy)
    request = CaptionRequest(
        clip=str(path), content_digest="", span=None, prompt=prompt_text("general"), model=engine.model,
        frames=engine.frame_policy, generation=GenerationSettings(max_tokens=160),
    )  # fmt: skip
    return await engine.caption(request, frames)
