"""Exit codes: one table, which the docs print and `main` obeys."""

from __future__ import annotations

from enum import IntEnum

from framefleet.errors import Blame, FramefleetError


class ExitCode(IntEnum):
    """What a command's exit status says."""

    OK = 0
    BUG = 1
    USAGE = 2
    PARTIAL = 3
    INPUT = 4
    DEVICE = 5
    CHECK_FAILED = 6
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "all done",
    ExitCode.BUG: "a fault in framefleet: please report it (FRAMEFLEET_DEBUG=1 shows the traceback)",
    ExitCode.USAGE: "the command line, a setting or a file of settings is wrong, or an optional library is missing",
    ExitCode.PARTIAL: "ran to the end, but some clips failed; each has a record with its reason",
    ExitCode.INPUT: "nothing usable in the input: no clip could be read",
    ExitCode.DEVICE: "a GPU, engine, server or disk does not do what is needed",
    ExitCode.CHECK_FAILED: "ran to the end, but what it checks does not hold (demo: score, searches; doctor: a need)",
    ExitCode.INTERRUPTED: "interrupted; what was committed is kept, and the same command goes on from there",
}

_BY_BLAME: dict[Blame, ExitCode] = {
    "config": ExitCode.USAGE,
    "input": ExitCode.INPUT,
    "device": ExitCode.DEVICE,
    "bug": ExitCode.BUG,
}


def exit_code_of(error: FramefleetError) -> ExitCode:
    """The exit code that goes with who is to blame."""
    return _BY_BLAME[error.blame]


def exit_code_for(num_ok: int, num_failed: int) -> ExitCode:
    """Of a run over many clips: all well, some failed, or none usable."""
    if num_failed == 0:
        return ExitCode.OK
    return ExitCode.PARTIAL if num_ok else ExitCode.INPUT
