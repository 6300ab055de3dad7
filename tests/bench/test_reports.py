"""Reports are one file that needs nothing else, say the verdict in a sentence, and hold what they must show."""

import html.parser
import re

import msgspec
import pytest
from bench_experiments import EXPERIMENT, trial

from framefleet.bench.apply import Applied
from framefleet.bench.charts import Line, change, interval_bars, line_chart, nice_ticks, share_bars, short, stacked_bars
from framefleet.bench.compare import Recorded, compare
from framefleet.bench.contest import Contest, ContestSettings, contest_report
from framefleet.bench.diagnose import Evidence, Lanes, StageReading, diagnose, nvdec_advice
from framefleet.bench.diagnosis import DiagnoseSettings, Diagnosis
from framefleet.bench.diagnosis_report import diagnosis_report
from framefleet.bench.gauges import Series
from framefleet.bench.ladder import Knee, Outcome
from framefleet.bench.report import Report, Section, as_html, as_markdown, table, text, write_report
from framefleet.bench.site import Site
from framefleet.bench.stats import Interval, compare_runs
from framefleet.bench.tune import Point, Starved, TuneResult, TuneSettings
from framefleet.bench.tune_report import tune_report

NOTHING = Interval(0.0, -0.02, 0.02)


class Tags(html.parser.HTMLParser):
    """Counts tags, and keeps what is left open."""

    VOID = frozenset({"meta", "br", "line", "circle", "rect", "polyline", "path", "i"})

    def __init__(self, page):
        super().__init__()
        self.open, self.links = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(report, raw_files):
    page = as_html(report)
    tags = Tags(page)
    assert not tags.open
    assert tags.links == list(raw_files)
    assert "http://" not in page.replace("http://x", "").replace("http://127.0.0.1", "")
    assert not re.search(r"\bnan\b|\binf\b", page)
    return page


def diagnosis(**fields):
    gain = Interval(0.9, 0.8, 1.0)
    evidence = Evidence(
        total_s=3.0,
        stages={
            "cpu_decode": StageReading(utilisation=0.98, wait_s=1.0, service_s=0.3),
            "transfer": StageReading(utilisation=None, wait_s=0, service_s=0),
        },
        ablations={"decoded_before": gain, "one_token": NOTHING, "half_frames": gain, "more_in_flight": NOTHING},
        shared=(Lanes("GPU", {"vision_prefill": 0.2, "generation": 0.3}),),
    )
    known = {
        "settings": DiagnoseSettings(endpoint="http://x", inputs=("clips",)),
        "verdict": diagnose(evidence),
        "advice": nvdec_advice(evidence, 0.05),
        "evidence": evidence,
        "site": Site(endpoint="http://x", engine_urls=("http://x",)),
        "log": "/some/where/trials.jsonl",
        "invalid": {},
        "unread": ("NVML finds no driver",),
        "notes": (),
        "versions": {"framefleet": "1"},
    }
    return Diagnosis(**(known | fields))


def seen_trials():
    series = Series((0.5, 1.0, 1.5), {"cpu/engine": (0.5, 1.0, 0.7), "gpu/busy": (0.9, 0.8, 1.0)})
    phases = {name: {"mean": 0.5, "p50": 0.4, "p95": 0.9, "p99": 1.0} for name in ("total", "ttft", "queue", "decode")}
    return [
        msgspec.structs.replace(trial(arm, 0, n), series=series, phases_s=phases, gauges={"engine/kv_use_peak": 0.5})
        for n, arm in enumerate(("alone", "plain", "decoded_before", "more_in_flight"))
    ]


def test_a_diagnosis_names_it_says_what_nvdec_can_gain_and_shows_everything():
    report = diagnosis_report(diagnosis(), seen_trials())
    page = checked(report, ["trials.jsonl", "report.json"])
    assert report.verdict == "What limits here: decoding on the CPU."
    assert "NVDEC can gain no more: so it is worth a try" in page
    assert "not read" in page
    assert page.count("<svg") >= 6
    assert len(page) < 200_000
    assert "| plain |" in as_markdown(report)


def test_an_unclear_diagnosis_says_so_and_why():
    unsure = msgspec.structs.replace(diagnosis().evidence, ablations={})
    report = diagnosis_report(diagnosis(evidence=unsure, verdict=diagnose(unsure), advice=None), [])
    assert report.tone == "unclear"
    assert report.verdict.startswith("It is not clear: not measured yet")
    checked(report, ["trials.jsonl", "report.json"])


def point(**settings):
    return Point(
        settings={"concurrency": 8, **settings}, rate_per_s=5.0, interval=Interval(5, 4.5, 5.5), num_trials=3,
        p95_s=2.0, error_share=0.0, budget_wait_s=0.0, memory_bytes=0.0, kv_headroom=0.4, failure="",
    )  # fmt: skip


def tuned(**fields):
    chosen = {"concurrency": 8, "decode_args.--budget": "1 GiB"}
    known = {
        "settings": TuneSettings(inputs=("clips",)), "today": {"concurrency": 8}, "chosen": chosen, "fastest": chosen,
        "gain": compare_runs([4.0, 4.1, 4.05], [5.0, 5.1, 5.05], smallest_effect=0.05),
        "knee": Knee(concurrency=8, reason="no more gain", measured={4: Outcome(rates_per_s=(3.0,))}),
        "points": tuple(point(**{"decode_args.--budget": size}) for size in ("512 MiB", "1 GiB", "2 GiB")),
        "starved": Starved(budget="512 MiB", verdict="waits", detail="clips waited 3.0 s in all"),
        "num_trials": 20, "grid_size": 100, "fleet_toml": "[fleet]\n", "engine_line": "vllm serve m",
        "log": "/a/t.jsonl",
    }  # fmt: skip
    return TuneResult(**(known | fields))


def test_a_search_says_what_to_run_and_what_it_gains_with_the_vram_ladder():
    report = tune_report(tuned())
    page = checked(report, ["t.jsonl", "report.json"])
    assert "over today&#x27;s settings" in page or "over today's settings" in page
    assert "vllm serve m" in page
    assert "VRAM budget, GiB" in page
    assert "KV cache never used" in page
    assert "clips wait, as they must" in page


def test_what_was_rolled_back_is_said_first():
    report = tune_report(tuned(applied=Applied(kept=False, reasons=("the p95 is 30% longer",))))
    assert (report.tone, report.verdict) == ("bad", "Rolled back: the p95 is 30% longer.")


@pytest.mark.parametrize(("rates", "claim"), [((5.0, 5.05), "better"), ((4.0, 4.02), "same"), ((3.0, 3.02), "worse")])
def test_the_sentence_follows_the_claim(rates, claim):
    gain = compare_runs([4.0, 4.01, 4.02], [*rates, rates[0]], smallest_effect=0.05)
    assert gain.claim == claim
    words = {"better": "over today's", "same": "as fast as", "worse": "leave them"}
    assert words[claim] in tune_report(tuned(gain=gain)).verdict


def test_a_contest_compares_with_the_first():
    trials = [trial("cpu", b, p, rate=10 + b) for b in range(3) for p in (0, 3)]
    trials += [trial("nvdec", b, p, rate=15 + b) for b in range(3) for p in (1, 2)]
    sides = [
        Recorded(log="/a/t.jsonl", arm=arm, experiment=EXPERIMENT, trials=tuple(t for t in trials if t.arm == arm))
        for arm in ("cpu", "nvdec")
    ]
    found = Contest(
        settings=ContestSettings(inputs=("c",), arms={"cpu": "http://x", "nvdec": "http://x"}),
        compared=(compare(*sides, metric="requests_per_s", smallest_effect=0.05),),
        trials=tuple(trials), stopped="3 blocks are done", log="/a/t.jsonl", versions={},
    )  # fmt: skip
    report = contest_report(found)
    checked(report, ["t.jsonl", "report.json"])
    assert "is better than" in report.verdict
    assert report.tone == "clear"


def test_names_cannot_break_the_page():
    odd = '<script>alert("x")</script>'
    report = Report(
        title=odd, verdict=odd, tone="bad", advice=(odd,),
        sections=(Section(title=odd, blocks=(text(odd), table((odd,), [[odd]]))),),
    )  # fmt: skip
    assert "<script" not in as_html(report)


def test_what_is_written_is_three_files(tmp_path):
    report = Report(title="t", verdict="v", tone="clear", sections=())
    paths = write_report(report, tmp_path / "new", {"a": 1})
    assert {path.name for path in paths.values()} == {"report.html", "report.md", "report.json"}
    assert msgspec.json.decode(paths["json"].read_bytes()) == {"a": 1}


def test_charts_of_nothing_are_empty_and_of_one_point_are_not():
    assert line_chart([], x="x", y="y") == stacked_bars({}, unit="s") == share_bars({}) == interval_bars({}) == ""
    assert "<circle" in line_chart([Line(name="a", x=[1], y=[2])], x="x", y="y", is_log=True)


def test_ticks_and_numbers_are_round():
    assert nice_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(0, 0.37, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [short(v) for v in (0, 0.01234, 4.567, 45.67, 1234.5)] == ["0", "0.0123", "4.57", "45.7", "1,234"]
    assert change(0.123) == "+12%"
    assert change(1e9) == "over +1000%"
