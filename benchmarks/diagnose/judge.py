"""Judge recorded trials of a diagnosis anew: the trials are the evidence, the verdict only follows from them.

    python benchmarks/diagnose/judge.py FOLDER --in-flight 12 --cores 16 --lanes 16

FOLDER has the trials of `diagnose` (.jsonl), and gets report.html, report.md and report.json. For trials from before
the load kept `client/in_flight`, and whose CPU seconds are those of one of vLLM's API servers: they are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from framefleet.bench.diagnose import diagnose, nvdec_advice
from framefleet.bench.diagnosis import ALONE, ALONE_DECODED, DiagnoseSettings, Diagnosis, notes_of, observed_of
from framefleet.bench.diagnosis_report import advice, diagnosis_report, sentence
from framefleet.bench.evidence import IN_FLIGHT, Setup, evidence_of
from framefleet.bench.experiment import Experiment, Trial
from framefleet.bench.report import write_report
from framefleet.bench.site import Site
from framefleet.bench.trial_log import read_log

NOT_OF_ALL = ("cpu/api_server", "rss/api_server", "cpu/all")


def completed(trial: Trial, in_flight: int) -> Trial:
    """With what the load was told, without gauges that saw a part only."""
    count = {ALONE: 1, ALONE_DECODED: 1, "more_in_flight": 2 * in_flight}.get(trial.arm, in_flight)
    gauges = {name: value for name, value in trial.gauges.items() if not name.startswith(NOT_OF_ALL)}
    return msgspec.structs.replace(trial, gauges={IN_FLIGHT: float(count), **gauges})


def judged(log: Path, experiment: Experiment, trials: list[Trial], asked: argparse.Namespace) -> Diagnosis:
    endpoint = f"http://{experiment.question.rsplit(maxsplit=1)[-1]}"
    settings = DiagnoseSettings(
        endpoint=endpoint, inputs=("20 s of 1080p H.264",), concurrency=asked.in_flight,
        prompt=experiment.workload.prompt, max_tokens=experiment.workload.max_output_tokens,
        time_limit_s=experiment.time_limit_s,
    )  # fmt: skip
    observed, invalid = observed_of(trials)
    evidence = evidence_of(observed, Setup(cores=asked.cores, decode_lanes=asked.lanes, is_gpu=True))
    return Diagnosis(
        settings=settings, verdict=diagnose(evidence), advice=nvdec_advice(evidence, settings.smallest_effect),
        evidence=evidence, site=Site(endpoint=endpoint, engine_urls=(endpoint,)), log=log.name, invalid=invalid,
        unread=("CPU of the engine's processes",), notes=tuple(notes_of(trials, {})), versions=experiment.versions,
    )  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--in-flight", type=int, required=True)
    asked.add_argument("--cores", type=float, required=True)
    asked.add_argument("--lanes", type=float, required=True, help="clips that the engine decodes at a time")
    given = asked.parse_args()
    log = next(given.folder.glob("*.jsonl"))
    experiment, recorded = read_log(log)
    trials = [completed(trial, given.in_flight) for trial in recorded]
    found = judged(log, experiment, trials, given)
    write_report(diagnosis_report(found, trials), given.folder, found)
    print(sentence(found.verdict), *advice(found), sep="\n")


if __name__ == "__main__":
    main()
