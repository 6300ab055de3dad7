"""Trials on disk: JSON Lines, the experiment first, then one line for each trial, synced before the next one begins.

A run that is killed goes on where it was: the torn tail of an unfinished line is cut off, and whole lines are kept.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from framefleet.bench.experiment import Experiment, Trial
from framefleet.errors import StoreUnreadable
from framefleet.store.disk import store_errors, sync_directory
from framefleet.store.lock import Lock

_encode = msgspec.json.Encoder(order="deterministic").encode
_T = TypeVar("_T")


def log_path(folder: Path, experiment: Experiment) -> Path:
    """The file of an experiment: a few words of its question, and its digest."""
    words = re.findall(r"[a-z0-9]+", experiment.question.lower())
    return folder / ("-".join([*words[:6], experiment.digest]) + ".jsonl")


def read_log(path: Path) -> tuple[Experiment, list[Trial]]:
    """The experiment and its whole trials. Raises StoreUnreadable, or StoreError for a file that cannot be opened."""
    if not path.exists():
        remedy = "the .jsonl that `bench run`, `diagnose` or `tune` wrote into its --report"
        raise StoreUnreadable("no trials here", given=repr(str(path)), remedy=remedy)
    with store_errors(path):
        content = path.read_bytes()
    experiment, trials, _ = _parse(content, path)
    if experiment is None:
        raise StoreUnreadable("no experiment in the file", given=repr(str(path)), allowed="what a run wrote")
    return experiment, trials


class TrialLog:
    """The trials of one experiment, open for more. One writer at a time (StoreLocked).

    Raises StoreUnreadable when a line is damaged or the file holds another experiment, StoreFull when there's no room:
    then the trials before are safe.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.path = log_path(folder, experiment)
        with ExitStack() as opening, store_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            opening.enter_context(Lock(self.path.with_name(self.path.name + ".lock")))
            content = self.path.read_bytes() if self.path.exists() else b""
            found, self._trials, self._num_bytes = _parse(content, self.path)
            if found not in (None, experiment):
                raise StoreUnreadable(
                    "another experiment is there", given=repr(str(self.path)), remedy="another folder"
                )
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opening.callback(os.close, self._descriptor)
            os.ftruncate(self._descriptor, self._num_bytes)
            if found is None:
                self._write(experiment)
                sync_directory(folder)
            self._held = opening.pop_all()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All that are on disk, in the order of writing."""
        return tuple(self._trials)

    def append(self, trial: Trial) -> None:
        """Write and sync one trial. Raises StoreFull, and then the file is as it was."""
        self._write(trial)
        self._trials.append(trial)

    def close(self) -> None:
        """Let go of the file and its lock; may be called twice."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: msgspec.Struct) -> None:
        content = memoryview(_encode(line) + b"\n")
        with store_errors(self.path):
            try:
                offset = self._num_bytes
                while content:
                    num_written = os.pwrite(self._descriptor, content, offset)
                    content, offset = content[num_written:], offset + num_written
                os.fdatasync(self._descriptor)
                self._num_bytes = offset
            except BaseException:
                os.ftruncate(self._descriptor, self._num_bytes)
                raise


def _parse(content: bytes, path: Path) -> tuple[Experiment | None, list[Trial], int]:
    """What the whole lines hold, and how many bytes they take."""
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if not lines:
        return None, [], 0
    experiment = _line(lines[0], Experiment, path, 1)
    trials = [_line(line, Trial, path, number) for number, line in enumerate(lines[1:], start=2)]
    return experiment, trials, len(whole)


def _line(line: bytes, kind: type[_T], path: Path, number: int) -> _T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise StoreUnreadable(
            f"not a line of a trial log ({kind.__name__})",
            given=f"{path}, line {number} ({error})",
            remedy="a backup; or remove the line",
        ) from error
