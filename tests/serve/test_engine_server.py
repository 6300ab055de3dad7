"""Our engine server as a process of its own: the same model answers the same, whichever way it is asked."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
import torch
from http_server import engine_server
from tiny_models import FAMILIES, make_model
from transformers import AutoModelForImageTextToText, AutoTokenizer

import framefleet
from framefleet.decode.options import DecodeOptions
from framefleet.engine import open_engine
from framefleet.engine.captioner import CaptionRequest, GenerationSettings
from framefleet.engine.clock import clock_of
from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.families import family_of
from framefleet.engine.embedded.frame_policy import frame_policy_for
from framefleet.engine.question import Turn
from framefleet.errors import CaptionRejected

CORPUS = Path(__file__).parents[1] / "corpus" / "files"
CLIPS = ["base.mp4", "three_frames.mp4", "rot90.mp4", "one_frame.mp4", "slowmo_240fps.mp4", "-dash first.mp4"]
BROKEN = ["html_404.mp4", "zero_bytes.mp4", "audio_only.mp4", "truncated_no_moov.mp4"]
PROMPT = "Describe this video in one sentence."


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return make_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def server(model):
    flags = ["--model", model, "--served-model-name", "tiny", "--num-threads", 1, "--decode-workers", 1]
    with engine_server(*flags, "--allowed-local-media-path", CORPUS) as url:
        yield url


def request_for(clip, policy):
    return CaptionRequest(
        clip=str(CORPUS / clip), content_digest=clip, span=None, prompt=PROMPT, model="tiny", frames=policy,
        generation=GenerationSettings(max_tokens=12),
    )  # fmt: skip


def by_hand(model, frames):
    """transformers' own generate on the whole."""
    family = family_of(open_checkpoint(str(model)), AutoTokenizer.from_pretrained(model))
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    prepared = family.prepare([Turn("user", PROMPT, True)], frames.data, clock_of(frames, None))
    with torch.inference_mode():
        output = network.generate(**family.collate([prepared]), max_new_tokens=12, do_sample=False)
    return family.tokenizer.decode(output[0, len(prepared.input_ids) :], skip_special_tokens=True)


def test_every_way_to_the_model_says_the_same(model, server):
    policy = frame_policy_for(str(model))
    frames = [framefleet.decode(CORPUS / clip, policy) for clip in CLIPS]

    async def ways():
        embedded = open_engine("embedded", model=str(model), num_threads=1)
        by_url = open_engine("openai_http", endpoint=server, send="url")
        by_bytes = open_engine("openai_http", endpoint=server)
        async with embedded, by_url, by_bytes:
            requests = [request_for(clip, policy) for clip in CLIPS]
            ours = await asyncio.gather(*map(embedded.caption, requests, frames))
            urls = await asyncio.gather(*(by_url.caption(r, None) for r in requests))
            uploads = await asyncio.gather(*(by_bytes.caption(r, None) for r in requests))
            return ours, urls, uploads

    ours, urls, uploads = asyncio.run(ways())
    hand = [by_hand(model, f) for f in frames]
    assert len(set(hand)) > 1
    assert [r.text for r in ours] == hand
    assert [r.text for r in urls] == hand
    assert [r.text for r in uploads] == hand
    assert [r.prompt_tokens for r in urls] == [r.prompt_tokens for r in ours]


only_one_family = pytest.mark.parametrize("model", FAMILIES[:1], indirect=True)


@only_one_family
def test_broken_clips_are_refused_with_the_reason(server):
    async def caption(clip):
        async with open_engine("openai_http", endpoint=server, send="url") as engine:
            return await engine.caption(request_for(clip, DecodeOptions()), None)

    for clip in BROKEN:
        with pytest.raises(CaptionRejected, match="HTTP 400"):
            asyncio.run(caption(clip))


@only_one_family
def test_the_server_outlives_its_model_process(server, model):
    pid = model_process_of(server)
    os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + 120
    while (new := model_process_of(server)) in (None, pid) or httpx.get(f"{server}/health").status_code != 200:
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert new != pid

    async def caption():
        async with open_engine("openai_http", endpoint=server, send="url") as engine:
            return await engine.caption(request_for("base.mp4", frame_policy_for(str(model))), None)

    assert asyncio.run(caption()).text


def model_process_of(url):
    """The process of the model: a child of the process that listens at the URL."""
    port = url.rpartition(":")[2]
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            above = (Path("/proc") / parent / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError, IndexError):
            continue
        if "framefleet.engine.embedded.worker" in command and port in above:
            return int(entry.name)
    return None
