"""Rules of models: equal to what the models' own processors choose."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.sampling.model_rules import RULES, rule_sampler
from framefleet.units import NS_PER_S

RATES = [0.2, 1.0, 10.0, 15.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 50.0, 60000 / 1001, 60.0, 120.0, 240.0]
CLOCKS = {"ns": 1, "ms": 1_000_000}


def clock(num_frames, fps, tick_ns=1):
    edges = np.rint(np.arange(num_frames + 1) * NS_PER_S / fps / tick_ns).astype(np.int64) * tick_ns
    return edges[:-1], int(edges[-1])


def metadata(num_frames, fps):
    class Metadata(SimpleNamespace):
        def __getitem__(self, name):
            return getattr(self, name)

    return Metadata(total_num_frames=num_frames, fps=fps, duration=num_frames / fps)


def theirs_qwen3(num_frames, fps, asked_fps):
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    settings = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    return Qwen3VLVideoProcessor.sample_frames(settings, metadata(num_frames, fps), fps=asked_fps).tolist()


def near_a_boundary(num_frames, fps, asked_fps):
    """Whether float error alone may decide the count upstream: n / fps * asked is whole to within a clock tick."""
    exact = num_frames / fps * asked_fps
    return math.ceil(exact) - exact < 0.0011 * asked_fps and exact != round(exact)


@pytest.mark.parametrize("tick", CLOCKS)
@given(n=st.integers(1, 20_000), fps=st.sampled_from(RATES), asked=st.sampled_from([0.5, 1, 2, 4, 30]))
def test_qwen3_vl_equals_transformers(tick, n, fps, asked):
    rows = RULES["qwen3_vl"](fps=asked).sample(*clock(n, fps, CLOCKS[tick])).rows.tolist()
    if not near_a_boundary(n, fps, asked):
        assert rows == theirs_qwen3(n, fps, asked)


@pytest.mark.parametrize(
    ("n", "fps", "expected"),
    [
        (60, 30.0, [0, 20, 39, 59]),
        (600, 30.0, np.linspace(0, 599, 40).round().astype(int).tolist()),
        (3, 30.0, [0, 1, 2]),
        (1, 30.0, [0]),
        (30000, 30.0, np.linspace(0, 29999, 768).round().astype(int).tolist()),
    ],
)
def test_qwen3_vl_worked_examples(n, fps, expected):
    assert rule_sampler("qwen3_vl").sample(*clock(n, fps)).rows.tolist() == expected


def test_qwen3_vl_asked_for_more_than_thirty_a_second_gives_thirty():
    clip = clock(600, 60.0)
    asked_60 = RULES["qwen3_vl"](fps=60.0).sample(*clip).rows
    assert asked_60.tolist() == RULES["qwen3_vl"](fps=30.0).sample(*clip).rows.tolist()
    assert len(asked_60) == 300


def theirs_qwen2_5(num_frames, fps, asked_fps):
    """`Qwen2VLVideoProcessor.sample_frames` of transformers 5.24 by another route (it cannot be imported without
    torchvision): its float range in float32, clamped to the last frame as vLLM 0.32 does."""
    most = math.floor(min(768, num_frames) / 2) * 2
    count = math.floor(min(max(num_frames / fps * asked_fps, 4), most, num_frames) / 2) * 2
    step = num_frames / count
    size = math.ceil(num_frames / step)
    return np.minimum((np.arange(size) * step).astype(np.float32).astype(np.int64), num_frames - 1).tolist(), count


@given(n=st.integers(2, 20_000), fps=st.sampled_from(RATES), asked=st.sampled_from([0.5, 1, 2, 4]))
def test_qwen2_5_vl_equals_transformers(n, fps, asked):
    rows = RULES["qwen2_5_vl"](fps=asked).sample(*clock(n, fps)).rows.tolist()
    if not near_a_boundary(n, fps, asked / 2):
        expected, count = theirs_qwen2_5(n, fps, asked)
        assert len(rows) == count
        assert rows == expected[:count]


def test_qwen2_5_vl_gives_the_one_frame_there_is():
    assert rule_sampler("qwen2_5_vl").sample(*clock(1, 30.0)).rows.tolist() == [0]


def theirs_smolvlm2(num_frames, fps, asked_fps, max_frames):
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    settings = SimpleNamespace(num_frames=max_frames, fps=asked_fps)
    return SmolVLMVideoProcessor.sample_frames(settings, metadata(num_frames, fps)).tolist()


@given(
    n=st.integers(1, 20_000),
    fps=st.sampled_from([1.0, 10.0, 24.0, 25.0, 30.0, 50.0, 60.0]),
    asked=st.sampled_from([1, 2]),
    max_frames=st.sampled_from([8, 64]),
)
def test_smolvlm2_equals_transformers(n, fps, asked, max_frames):
    rows = RULES["smolvlm2"](fps=asked, max_frames=max_frames).sample(*clock(n, fps)).rows.tolist()
    assert rows == theirs_smolvlm2(n, fps, asked, max_frames)


@pytest.mark.parametrize("rule", RULES)
@given(
    gaps=st.lists(st.integers(1_000_000, 3 * NS_PER_S), min_size=1, max_size=80),
    fps=st.floats(0.1, 40),
    bounds=st.tuples(st.integers(1, 8), st.integers(8, 48)),
    max_duration_s=st.none() | st.floats(0.1, 60),
)
def test_every_rule_keeps_its_bounds_on_any_clock(rule, gaps, fps, bounds, max_duration_s):
    edges = np.cumsum([5 * NS_PER_S, *gaps])
    pts_ns = edges[:-1]
    sampler = rule_sampler(rule, fps=fps, min_frames=bounds[0], max_frames=bounds[1], max_duration_s=max_duration_s)
    rows = sampler.sample(pts_ns, int(edges[-1])).rows
    assert 1 <= len(rows) <= bounds[1]
    assert rows[0] >= 0
    assert rows[-1] < len(pts_ns)
    assert np.all(np.diff(rows) > 0)
    if max_duration_s is not None:
        assert pts_ns[rows[-1]] - pts_ns[0] < max_duration_s * NS_PER_S + 1


def test_unknown_rules_and_crossed_bounds_are_refused():
    with pytest.raises(ConfigError, match="qwen3_vl"):
        rule_sampler("qwen4")
    with pytest.raises(ConfigError):
        rule_sampler("qwen3_vl", min_frames=9, max_frames=8)
