import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.caption.settings import CaptionSettings, overlay
from framefleet.caption.windowing import WindowRule
from framefleet.decode.options import DecodeOptions
from framefleet.errors import ConfigError
from framefleet.units import NS_PER_S

POLICY = DecodeOptions(rule="qwen3_vl", fps=2.0, min_frames=4, max_frames=768, total_pixels=10**6, size_factor=32)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, POLICY),
        (DecodeOptions(), POLICY),
        (DecodeOptions(backend="pyav", timeout_s=5), {"backend": "pyav", "timeout_s": 5}),
        (
            DecodeOptions(num_frames=8),
            {"num_frames": 8, "rule": None, "fps": None, "min_frames": None, "max_frames": None},
        ),
        (DecodeOptions(fps=1, max_frames=9), {"fps": 1, "max_frames": 9, "rule": None, "min_frames": None}),
        (DecodeOptions(max_frames=9), {"max_frames": 9}),
        (DecodeOptions(max_pixels=5000), {"max_pixels": 5000, "total_pixels": None}),
        (DecodeOptions(size=(64, 64)), {"size": (64, 64), "total_pixels": None}),
    ],
)
def test_what_the_user_chooses_lies_over_the_models_policy(wanted: DecodeOptions | None, expected: object):
    import msgspec

    changes = expected if isinstance(expected, dict) else {}
    assert overlay(wanted, POLICY) == msgspec.structs.replace(POLICY, **changes)


@given(st.builds(DecodeOptions, num_frames=st.none() | st.integers(1, 9), backend=st.sampled_from(["auto", "pyav"])))
def test_over_a_policy_of_nothing_it_is_what_the_user_said(wanted: DecodeOptions):
    assert overlay(wanted, DecodeOptions()) == wanted


def test_window_rules():
    assert CaptionSettings().window_rule() is None
    assert CaptionSettings(window="1m30s", overlap="5s").window_rule() == WindowRule(
        length_ns=90 * NS_PER_S, overlap_ns=5 * NS_PER_S
    )
    assert CaptionSettings(shots=True, min_shot="2s", window="20s").window_rule() == WindowRule(
        length_ns=20 * NS_PER_S, min_shot_ns=2 * NS_PER_S
    )
    keys = {rule.key for rule in (WindowRule(length_ns=1), WindowRule(length_ns=2), WindowRule(min_shot_ns=1))}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": "5s", "overlap": "5s"}, "no progress"),
        ({"window": "0s"}, "no progress"),
        ({"window": "five"}, "not a duration"),
        ({"overlap": "1s"}, "without a window"),
        ({"shots": True, "window": "9s", "overlap": "1s"}, "shots do not overlap"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        CaptionSettings(**changes).window_rule()
