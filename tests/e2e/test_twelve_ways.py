"""One scene written twelve ways is one caption: container, codec, rotation flag, frame rate, bit depth, colours."""

import asyncio

import pytest

import framefleet
from framefleet.engine import open_engine
from framefleet.engine.captioner import CaptionRequest, GenerationSettings
from framefleet.engine.prompts import prompt_text
from framefleet.scenes import caption_of, sample_scene, write_clip
from framefleet.scenes.encode import TWELVE_WAYS

SEEDS = [2500, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2501, 2509))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_caption_does_not_depend_on_how_the_scene_was_written(tmp_path, seed):
    scene = sample_scene(seed, max_duration_s=8.0)
    paths = {}
    for name, (suffix, form) in TWELVE_WAYS.items():
        paths[name] = tmp_path / f"{name}.{suffix}"
        write_clip(scene, paths[name], width=640, height=360, form=form)
    captions = asyncio.run(captions_of(paths))
    assert captions == dict.fromkeys(paths, caption_of(scene.truth))


async def captions_of(paths):
    async with open_engine("embedded", num_threads=2) as engine:

        async def caption(path):
            frames = await asyncio.to_thread(framefleet.decode, path, engine.frame_policy)
            assert frames.stats.num_missing == 0
            request = CaptionRequest(
                clip=str(path), content_digest="", span=None, prompt=prompt_text("general"), model=engine.model,
                frames=engine.frame_policy, generation=GenerationSettings(max_tokens=160),
            )  # fmt: skip
            return (await engine.caption(request, frames)).text

        return dict(zip(paths, await asyncio.gather(*map(caption, paths.values())), strict=True))
