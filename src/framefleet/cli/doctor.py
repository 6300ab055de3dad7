"""`framefleet doctor`: what this machine has and lacks, each finding with its remedy."""

from __future__ import annotations

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json
from framefleet.cli.render import show, show_json, show_table
from framefleet.doctor.finding import Finding

_SIGNS = {"ok": "ok", "info": "-", "warning": "warning", "error": "ERROR"}


def doctor(as_json: Json = False) -> ExitCode:
    """Look over this machine: versions, codecs, decode backends, cores, memory, disk, GPUs, vLLM; with remedies."""
    findings = _look()
    if as_json:
        show_json({"findings": findings, "ok": not _has_error(findings)})
    else:
        rows = [[_SIGNS[f.level], f.name, f.found, f.remedy] for f in findings]
        show_table(["", "what", "found", "remedy"], rows)
        show(
            "All that is needed is here."
            if not _has_error(findings)
            else "Something needed is missing: see ERROR above."
        )
    return ExitCode.CHECK_FAILED if _has_error(findings) else ExitCode.OK


def _look() -> list[Finding]:
    from framefleet.doctor.decoding import decoding_findings
    from framefleet.doctor.gpus import gpu_findings
    from framefleet.doctor.libraries import library_findings
    from framefleet.doctor.machine import machine_findings
    from framefleet.doctor.serving import serving_findings
    from framefleet.scenes import sample_clips

    decoding = decoding_findings(str(sample_clips()[0].path))
    return [*library_findings(), *decoding, *machine_findings(), *gpu_findings(), *serving_findings()]


def _has_error(findings: list[Finding]) -> bool:
    return any(f.level == "error" for f in findings)
