"""The model's own process: `python -m framefleet.engine.embedded.worker FD`.

One thread reads questions and prepares them while the main thread generates. The process ends with its parent: the
socket closes, whatever killed the parent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from framefleet.engine.embedded.batching import Inbox
from framefleet.engine.embedded.wire import (
    Alive,
    Ask,
    Cancel,
    Channel,
    Done,
    Failed,
    Load,
    Piece,
    Ready,
    Started,
    ToProcess,
)
from framefleet.errors import CaptionError, DeviceError, FramefleetError, MissingLibrary

if TYPE_CHECKING:
    from framefleet.engine.embedded.families import Prepared
    from framefleet.engine.embedded.generation import Writer, Written

BEAT_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A prepared question."""

    ask: Ask
    prepared: Prepared
    key: Hashable
    preprocess_s: float
    arrived_s: float

    @property
    def id(self) -> int:
        return self.ask.id

    @property
    def num_tokens(self) -> int:
        return len(self.prepared.input_ids) + self.ask.generation.max_tokens


class Worker:
    """Reads, prepares, generates, answers."""

    def __init__(self, channel: Channel, load: Load, writer: Writer) -> None:
        self._channel = channel
        self._writer = writer
        self._withdrawn: set[int] = set()
        self._last_beat_s = 0.0
        self._inbox = Inbox(
            max_batch=load.max_batch, max_batch_tokens=load.max_batch_tokens, batch_wait_s=load.batch_wait_s
        )

    def read_forever(self) -> None:
        """Body of the reading thread; ends the process when the parent is gone."""
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, Cancel):
                    self._withdrawn.add(message.id)
                    self._inbox.withdraw(message.id)
                elif isinstance(message, Ask):
                    self._prepare(message)
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:  # noqa: BLE001 - without its reader the process is of no use
            traceback.print_exc()
            os._exit(70)

    def work_forever(self) -> None:
        """Body of the main thread."""
        while True:
            taken = self._inbox.take()
            if batch := [job for job in taken if isinstance(job, Job) and job.id not in self._withdrawn]:
                self._answer(batch)
            self._withdrawn.difference_update(job.id for job in taken)

    def _prepare(self, ask: Ask) -> None:
        from framefleet.engine.embedded.generation import check_generation

        started_s = time.perf_counter()
        try:
            assert ask.frames is not None
            check_generation(ask.generation)
            prepared = self._writer.family.prepare(ask.turns, ask.frames, ask.clock)
            key = self._writer.batch_key(ask.id, prepared, ask.generation)
        except Exception as error:  # noqa: BLE001 - one bad question must not end the process
            self._channel.send(Failed.of(ask.id, _ours(error)))
            return
        now_s = time.perf_counter()
        ask = msgspec.structs.replace(ask, frames=None)
        self._inbox.put(Job(ask, prepared, key, now_s - started_s, now_s))

    def _answer(self, batch: list[Job]) -> None:
        """Generate; a batch that fails is halved until the one that fails stands alone (or the memory is enough)."""
        started_s = time.perf_counter()
        self._channel.send(Started(tuple(job.id for job in batch)))
        try:
            written = self._writer.write([self._row(job) for job in batch], self._beat)
        except Exception as error:  # noqa: BLE001 - one bad question must not end the process
            if len(batch) == 1:
                self._channel.send(Failed.of(batch[0].id, _ours(error)))
                return
        else:
            generate_s = time.perf_counter() - started_s
            for job, one in zip(batch, written, strict=True):
                self._channel.send(_done(job, one, started_s, generate_s))
            return
        middle = len(batch) // 2
        self._answer(batch[:middle])
        self._answer(batch[middle:])

    def _row(self, job: Job) -> Any:
        from framefleet.engine.embedded.generation import Row

        def tell(text: str) -> None:
            self._channel.send(Piece(job.id, text))

        return Row(
            job.prepared,
            job.ask.generation,
            lambda: job.id in self._withdrawn,
            tell if job.ask.wants_text else None,
        )

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_beat_s >= BEAT_S:
            self._last_beat_s = now_s
            self._channel.send(Alive())


def _done(job: Job, written: Written, started_s: float, generate_s: float) -> Done:
    return Done(
        id=job.id,
        text=written.text,
        finish_reason=written.finish_reason,
        prompt_tokens=len(job.prepared.input_ids),
        completion_tokens=written.num_tokens,
        mean_logprob=written.mean_logprob,
        seconds={
            "preprocess": job.preprocess_s,
            "queue": started_s - job.arrived_s,
            "prefill": written.prefill_s,
            "generate": generate_s,
        },
    )


def _ours(error: Exception) -> FramefleetError:
    if isinstance(error, FramefleetError):
        return error
    if type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return DeviceError(
            "the device ran out of memory or failed",
            given=str(error).split("\n")[0],
            remedy="fewer or smaller frames, a smaller max_batch_tokens, or a smaller model",
        )
    traceback.print_exception(error)
    return CaptionError("the model failed on this request", given=f"{type(error).__name__}: {error}")


def _load(load: Load) -> tuple[Writer, Ready]:
    started_s = time.perf_counter()
    try:
        from framefleet.engine.embedded.loading import load_writer
    except ImportError as error:
        raise MissingLibrary(
            "the embedded engine needs torch and transformers",
            given=str(error),
            remedy="pip install 'framefleet[embedded]'",
        ) from error
    writer, versions = load_writer(load)
    return writer, Ready(
        device=str(writer.model.device),
        dtype=str(writer.model.dtype).removeprefix("torch."),
        load_s=time.perf_counter() - started_s,
        versions=versions,
    )


def main(fd: int) -> None:
    """Load what the first message says, then answer until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    channel = Channel(socket.socket(fileno=fd), ToProcess)
    load = channel.receive()
    try:
        writer, ready = _load(load)
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        channel.send(Failed.of(0, _ours(error)))
        return
    worker = Worker(channel, load, writer)
    threading.Thread(target=worker.read_forever, name="reader", daemon=True).start()
    channel.send(ready)
    worker.work_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
