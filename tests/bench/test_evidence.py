"""From trials to evidence: the right stage carries the load, gauges that overstate are held down by the ablations."""

import msgspec
import pytest

from framefleet.bench.diagnose import diagnose
from framefleet.bench.evidence import Observed, Setup, batch_rates, evidence_of, utilisation_of_queue
from framefleet.bench.experiment import Measurement, Trial

GAUGES = {"client/cpu": 0.1, "gpu/busy": 0.95, "cpu/api_server": 3.0, "gpu/pcie": 0.02, "cpu/proxy": 0.05}
SETUP = Setup(cores=16, decode_lanes=8, is_gpu=True, has_proxy=True)


def trial(arm, rate, *, jitter=0.0, phases=None, seconds=10, **gauges):
    """`rate` answers a second, evenly, over `seconds`."""
    count = round(rate * seconds)
    ends = [(n + 1) / rate * (1 + jitter * (n % 3)) for n in range(count)]
    measured = tuple(Measurement(clip="c", total_s=0.5, started_s=end - 0.5) for end in ends)
    named = {name.replace("__", "/"): value for name, value in gauges.items()}
    defaults = {"ttft": 2.0, "queue": 0.0, "prefill": 0.2, "before_engine": 0.3, "total": 3.0, "generation": 1.0}
    return Trial(
        arm=arm, arm_digest="", block=0, position=0, wall_s=seconds, measurements=measured,
        gauges=GAUGES | named,
        phases_s={name: {"mean": value} for name, value in (defaults | (phases or {})).items()},
    )  # fmt: skip


def observed(plain, *, decoded=None, one_token=None, half=None, more=None, loaded_s=0.3, waited_s=0.0, **gauges):
    alone = trial("alone", 1.0, phases={"before_engine": 0.30})
    alone_decoded = trial("alone_decoded", 1.0, phases={"before_engine": 0.06})
    rates = {
        "decoded_before": decoded or plain, "one_token": one_token or plain, "half_frames": half or plain,
        "more_in_flight": more or plain,
    }  # fmt: skip
    loaded = {"before_engine": loaded_s, "wait": waited_s}
    return Observed(
        plain=(trial("plain", plain, phases=loaded, **gauges),) * 2,
        ablations={name: (trial(name, rate),) * 2 for name, rate in rates.items()},
        alone=(alone,),
        alone_decoded=(alone_decoded,),
    )


def test_requests_that_queue_before_the_engine_and_gain_without_decoding_are_cpu_decode():
    """Also where NVML shows a GPU that is busy nearly all the time, as it does with a few requests running."""
    found = evidence_of(observed(10, decoded=25, loaded_s=4.0), SETUP)
    verdict = diagnose(found)
    assert verdict.bottlenecks == ("cpu_decode",), verdict
    assert next(lanes for lanes in found.shared if lanes.name == "GPU").utilisation < 0.45


def test_a_gpu_that_nothing_relieves_is_generation_or_prefill_by_what_one_token_gains():
    mostly_words = evidence_of(observed(10, one_token=50), SETUP)
    assert diagnose(mostly_words).bottlenecks == ("generation",)
    mostly_frames = evidence_of(observed(10, one_token=10.5, half=19), SETUP)
    assert diagnose(mostly_frames).bottlenecks == ("vision_prefill",)


def test_twice_the_requests_that_gain_show_that_too_few_are_in_flight():
    assert diagnose(evidence_of(observed(10, more=18), SETUP)).bottlenecks == ("client",)


def test_a_client_at_its_end_is_named():
    found = evidence_of(observed(10, gpu__busy=0.5, client__cpu=0.99), SETUP)
    assert diagnose(found).bottlenecks == ("client",)


def test_the_proxy_s_core_is_read():
    found = evidence_of(observed(10, gpu__busy=0.5, cpu__proxy=0.98), SETUP)
    assert diagnose(found).bottlenecks == ("proxy",)


def test_a_full_cache_is_named_only_where_its_holders_do_not_wait_for_the_gpu():
    found = evidence_of(observed(10, engine__kv_use=0.99, gpu__busy=0.6), SETUP)
    assert diagnose(found).bottlenecks == ("kv_cache",)


def test_nvdec_is_told_from_decoding_on_the_cpu():
    found = evidence_of(observed(10, decoded=25, gpu__nvdec=0.97, gpu__busy=0.3), SETUP)
    assert "cpu_decode" not in found.stages
    assert diagnose(found).bottlenecks == ("nvdec",)


def test_slots_of_a_decode_service_are_the_best_reading():
    gauges = {"decode__cpu": 7.9, "decode__cpu_slots": 8.0, "decode__nvdec": 0.5, "decode__nvdec_slots": 4.0}
    found = evidence_of(observed(10, decoded=25, gpu__busy=0.3, **gauges), SETUP)
    assert found.stages["cpu_decode"].utilisation == pytest.approx(0.9875)
    assert found.stages["nvdec"].utilisation == pytest.approx(0.125)
    assert "cpu_decode" in diagnose(found).bottlenecks


def test_what_waits_for_a_decode_service_does_not_wait_for_the_api_server():
    gauges = {"decode__cpu": 0.1, "decode__cpu_slots": 8.0, "decode__nvdec": 3.95, "decode__nvdec_slots": 4.0}
    seen = observed(10, decoded=25, loaded_s=4.0, waited_s=3.6, gpu__busy=0.3, **gauges)
    assert diagnose(evidence_of(seen, SETUP)).bottlenecks == ("nvdec",)


def test_what_cannot_be_read_is_said():
    plain = observed(10, gpu__busy=0.5)
    without = tuple(
        msgspec.structs.replace(one, gauges={n: v for n, v in one.gauges.items() if n != "gpu/pcie"})
        for one in plain.plain
    )
    found = evidence_of(msgspec.structs.replace(plain, plain=without), SETUP)
    assert found.stages["transfer"].utilisation is None
    assert "transfer" in diagnose(found).unread


def test_cores_are_shared_by_what_was_seen_of_each_role():
    setup = msgspec.structs.replace(SETUP, cores=4, is_gpu=False)
    seen = observed(10, decoded=30, gpu__busy=0.2, cpu__decode_worker=3.6, cpu__api_server=0.2, cpu__engine=0.1)
    cores = next(lanes for lanes in evidence_of(seen, setup).shared if lanes.name == "CPU cores")
    assert cores.busy["cpu_decode"] == pytest.approx(0.9)
    assert cores.large_parts() == ["cpu_decode"]


def test_parts_of_a_trial_are_its_rate():
    assert batch_rates(trial("plain", 10)) == [pytest.approx(10)] * 3
    assert len(batch_rates(trial("plain", 1, seconds=7))) == 1
    assert batch_rates(trial("plain", 1, seconds=1)) == []


def test_requests_in_step_are_no_bursts():
    """Twelve in flight, all begin and end together: three waves of 4 s, and one of which a single answer came early."""
    waves = [Measurement(clip="c", total_s=4 - n / 100, started_s=4.0 * wave) for wave in range(3) for n in range(12)]
    seen = trial("plain", 1, seconds=12, client__in_flight=12)
    seen = msgspec.structs.replace(seen, measurements=tuple(waves))
    assert batch_rates(seen) == [pytest.approx(3.04, abs=0.01)] * 3
    few = msgspec.structs.replace(seen, measurements=tuple(waves[:13]), wall_s=6)
    assert batch_rates(few) == [pytest.approx(3.04, abs=0.01)]


def test_a_queue_tells_how_busy_its_server_is():
    assert utilisation_of_queue(0) == 0
    assert utilisation_of_queue(8.1) == pytest.approx(0.9)
    assert utilisation_of_queue(1000) > 0.99
