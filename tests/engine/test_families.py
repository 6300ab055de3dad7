"""Our inputs against those of transformers' own processors: recorded always, live where torchvision is at hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FAMILIES, SIZES, some_frames
from transformers import AutoModelForImageTextToText, AutoTokenizer

from framefleet.engine.clock import FrameClock, clock_of
from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.families import family_of, number_in_words, patch_times_s
from framefleet.engine.question import Turn
from framefleet.errors import CaptionRejected
from framefleet.units import Span

HERE = Path(__file__).parent
TORCHVISION = Path(sys.prefix) / "torchvision-for-tests"
spec = importlib.util.spec_from_file_location("hf_reference", HERE / "hf_reference.py")
hf_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hf_reference)
GOLDEN = json.loads((HERE / "hf_golden.json").read_text())


@pytest.fixture(scope="session")
def families(models):
    def load(name):
        checkpoint = open_checkpoint(str(models / name))
        return family_of(checkpoint, AutoTokenizer.from_pretrained(models / name))

    return {name: load(name) for name in FAMILIES}


def prepared(family, name, case):
    num_frames, step, fps, prompt = hf_reference.CASES[case]
    frames = some_frames(num_frames, *SIZES[name], seed=num_frames, step=step, fps=fps)
    return family.prepare([Turn("user", prompt, has_video=True)], frames.data, clock_of(frames, None))


@pytest.mark.parametrize("case", hf_reference.CASES)
@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_are_those_recorded_from_the_stock_processor(families, name, case):
    golden, ours = GOLDEN[name][case], prepared(families[name], name, case)
    assert families[name].tokenizer.decode(ours.input_ids) == golden["prompt"]
    assert hf_reference.digest(ours.pixels) == golden["pixels"]
    if golden["grid"]:
        assert list(ours.grid) == golden["grid"]
    if golden["seconds_per_grid"]:
        assert ours.seconds_per_grid == pytest.approx(golden["seconds_per_grid"], rel=1e-6)


@pytest.fixture(scope="session")
def live(models, tmp_path_factory):
    if not TORCHVISION.exists():
        pytest.skip(f"{TORCHVISION} is missing (`make test` installs it); the recorded comparison ran")
    out = tmp_path_factory.mktemp("reference") / "live.json"
    environment = os.environ | {"PYTHONPATH": str(TORCHVISION), "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, HERE / "hf_reference.py", models, out], env=environment, check=True, timeout=240)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_and_words_are_those_of_the_stock_processor_now(families, models, live, name):
    model = AutoModelForImageTextToText.from_pretrained(models / name, dtype=torch.float32).eval()
    for case, theirs in live[name].items():
        ours = prepared(families[name], name, case)
        assert ours.input_ids == theirs["input_ids"]
        assert hf_reference.digest(ours.pixels) == theirs["pixels"]
        inputs = families[name].collate([ours])
        with torch.inference_mode():
            tokens = model.generate(**inputs, max_new_tokens=16)[0, len(ours.input_ids) :]
        assert families[name].tokenizer.decode(tokens, skip_special_tokens=True) == theirs["said"]


@pytest.mark.parametrize("name", FAMILIES)
def test_one_frame_is_enough(families, name):
    frames = some_frames(1, *SIZES[name])
    ours = families[name].prepare([Turn("user", "Hi", has_video=True)], frames.data, clock_of(frames, None))
    assert len(ours.pixels)
    if name != "smolvlm":
        assert ours.grid[0] == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_frames_of_a_wrong_size_are_refused(families, name):
    frames = some_frames(2, 50, 96)
    with pytest.raises(CaptionRejected, match=r"96x50.*multiples of"):
        families[name].prepare([Turn("user", "Hi", has_video=True)], frames.data, clock_of(frames, None))


@pytest.mark.parametrize(
    ("name", "token"), [("qwen3_vl", "<|video_pad|>"), ("qwen2_5_vl", "<|video_pad|>"), ("smolvlm", "<image>")]
)
def test_a_prompt_cannot_bring_its_own_video_tokens(families, name, token):
    frames = some_frames(2, *SIZES[name])
    with pytest.raises(CaptionRejected):
        families[name].prepare([Turn("user", f"Hi {token}", has_video=True)], frames.data, clock_of(frames, None))


def test_turns_and_a_system_message_are_rendered_in_order(families):
    frames = some_frames(2, *SIZES["qwen3_vl"])
    turns = [Turn("system", "SYS"), Turn("user", "ONE", True), Turn("assistant", "TWO"), Turn("user", "THREE")]
    ours = families["qwen3_vl"].prepare(turns, frames.data, clock_of(frames, None))
    text = families["qwen3_vl"].tokenizer.decode(ours.input_ids)
    places = [text.index(word) for word in ("SYS", "<|video_pad|>", "ONE", "TWO", "THREE")]
    assert places == sorted(places)


def test_batches_are_padded_on_the_left(families):
    family = families["qwen3_vl"]
    short, long = prepared(family, "qwen3_vl", "three"), prepared(family, "qwen3_vl", "long")
    inputs = family.collate([short, long])
    pad = len(long.input_ids) - len(short.input_ids)
    assert inputs["attention_mask"][0].tolist() == [0] * pad + [1] * len(short.input_ids)
    assert inputs["input_ids"][0, pad:].tolist() == short.input_ids
    assert len(inputs["pixel_values_videos"]) == len(short.pixels) + len(long.pixels)
    assert (inputs["mm_token_type_ids"] == 2).sum() * 4 == len(inputs["pixel_values_videos"])


def test_a_window_counts_from_its_own_first_frame():
    frames = some_frames(4, step=10, fps=10.0)
    later = np.asarray(frames.indices) + 300
    clip = type(frames)(
        data=frames.data, pts_s=later / 10.0, indices=later, info=frames.info, stats=frames.stats,
        duration_s=40.0, fps=10.0, total_num_frames=400,
    )  # fmt: skip
    clock = clock_of(clip, Span(30_000_000_000, 34_000_000_000))
    assert clock == FrameClock([0, 10, 20, 30], 10.0, 40, 4.0)
    assert clock_of(clip, None).frames_indices == [300, 310, 320, 330]
    assert clock_of(clip, Span(30_000_000_000, 90_000_000_000)).total_num_frames == 100


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40).map(sorted), st.floats(1, 240), st.integers(1, 4))
def test_patch_times_are_within_their_frames(rows, fps, patch):
    times_s = patch_times_s(FrameClock(rows, fps, rows[-1] + 1, 1.0), patch)
    assert len(times_s) == -(-len(rows) // patch)
    assert times_s == sorted(times_s)
    assert rows[0] / fps <= times_s[0]
    assert times_s[-1] <= rows[-1] / fps


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (20, "twenty"), (64, "sixty-four"), (100, "one hundred"),
        (105, "one hundred and five"), (768, "seven hundred and sixty-eight"), (1000, "one thousand"),
        (1005, "one thousand and five"), (1234, "one thousand, two hundred and thirty-four"),
    ],
)  # fmt: skip
def test_numbers_in_words(number, words):
    assert number_in_words(number) == words
