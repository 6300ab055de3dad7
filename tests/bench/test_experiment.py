"""What names an experiment, what a trial comes to, and the gate before speed."""

import msgspec
import pytest
from bench_experiments import EXPERIMENT, changed, trial

from framefleet.bench.experiment import WARM_UP, Arm, Measurement, Trial, answers_that_differ, metric_value, trials_of
from framefleet.errors import ConfigError


def test_digest_follows_every_field_and_nothing_else():
    others = [
        changed(question="another"),
        changed(smallest_effect=0.06),
        changed(metric="total_p95_s"),
        changed(arms=EXPERIMENT.arms[::-1]),
        changed(versions={"engine": "2"}),
        changed(workload=msgspec.structs.replace(EXPERIMENT.workload, prompt="And now?")),
    ]
    assert len({one.digest for one in [EXPERIMENT, *others]}) == 7
    assert msgspec.json.decode(msgspec.json.encode(EXPERIMENT), type=type(EXPERIMENT)).digest == EXPERIMENT.digest


def test_arm_digest_is_of_its_settings_in_any_order():
    one, two = Arm(name="a", settings={"x": 1, "y": 2}), Arm(name="b", settings={"y": 2, "x": 1})
    assert one.digest == two.digest != Arm(name="a", settings={"x": 1, "y": 3}).digest


@pytest.mark.parametrize(
    "fields",
    [
        {"arms": EXPERIMENT.arms[:1]},
        {"arms": EXPERIMENT.arms[:1] * 2},
        {"smallest_effect": 0.0},
        {"confidence": 1.0},
        {"min_blocks": 1},
        {"min_blocks": 9, "max_blocks": 8},
        {"time_limit_s": 0},
        {"workload": msgspec.structs.replace(EXPERIMENT.workload, clips=())},
    ],
)
def test_experiments_that_can_answer_nothing_are_refused(fields):
    with pytest.raises(ConfigError, match="experiment with the wrong"):
        changed(**fields)


def test_metrics_count_only_what_went_well():
    measurements = [Measurement(clip=str(n), total_s=float(n), output_tokens=10) for n in range(1, 101)]
    failed = Measurement(clip="bad", total_s=999.0, output_tokens=999, error="EngineLost")
    run = Trial(arm="a", arm_digest="", block=0, position=0, wall_s=50, measurements=(*measurements, failed))
    values = {m: metric_value(run, m) for m in ("requests_per_s", "tokens_per_s", "total_p50_s", "total_p95_s")}
    assert values == {
        "requests_per_s": 2.0, "tokens_per_s": 20.0, "total_p50_s": 50.5, "total_p95_s": pytest.approx(95.05),
    }  # fmt: skip
    assert metric_value(run, "total_p99_s") == pytest.approx(99.01)
    assert run.error_share == 1 / 101


def test_a_trial_in_which_nothing_went_well_has_no_value():
    assert metric_value(trial(error="EngineLost"), "requests_per_s") is None
    assert trial(error="EngineLost").error_share == 1


def test_gate_names_the_clips_that_differ():
    same = answers_that_differ([trial("cpu")], [trial("nvdec")])
    assert same.passed
    assert same.num_compared == 2
    assert answers_that_differ([trial("cpu")], [trial("nvdec", caption="y")]).captions == ("c0", "c1")


def test_gate_does_not_pass_when_nothing_could_be_compared():
    assert not answers_that_differ([trial("cpu")], [trial("nvdec", error="EngineLost")]).passed


def test_warm_up_never_counts():
    trials = [trial(block=1), trial(block=WARM_UP), trial(block=0), trial("nvdec")]
    assert [one.block for one in trials_of(trials, "cpu")] == [0, 1]
