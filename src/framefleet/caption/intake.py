"""From a clip to the windows that still want a caption: content digest, windows, and what the store has already."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from framefleet.caption.copies import LocalCopies
from framefleet.caption.inputs import clip_name
from framefleet.caption.ledger import Ledger, stamp_of
from framefleet.caption.reader import ClipReader
from framefleet.caption.remote import remote_content_digest
from framefleet.caption.step import Patience, Work, failure, patiently
from framefleet.caption.windowing import WindowRule, cut_clip
from framefleet.decode.decoder import ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.engine.captioner import CaptionRecord, CaptionRequest, GenerationSettings, Status
from framefleet.errors import FramefleetError, SourceNotFound, SourceUnavailable
from framefleet.media.source import VideoSource
from framefleet.store.statuses import Statuses
from framefleet.units import Span

_log = logging.getLogger(__name__)

UNKNOWN_CONTENT = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every window: the part of the requests that the clips do not differ in."""

    prompt: str
    schema: dict[str, Any] | None
    model: str
    revision: str = ""
    frames: DecodeOptions
    generation: GenerationSettings

    def of(self, clip: str, content_digest: str, span: Span | None) -> CaptionRequest:
        """The request about one window."""
        return CaptionRequest(
            clip=clip, content_digest=content_digest, span=span, prompt=self.prompt, schema=self.schema,
            model=self.model, revision=self.revision, frames=self.frames, generation=self.generation,
        )  # fmt: skip


@dataclass(slots=True)
class ClipIntake:
    """What a clip brings."""

    clip: str
    work: list[Work] = field(default_factory=list)
    skipped: Counter[Status] = field(default_factory=Counter)
    """Windows whose record is in the store, by its status."""
    failed: CaptionRecord | None = None
    """The clip could not be read or cut: its one record. Then there is no work."""


class Intake:
    """Takes clips in. One clip's call costs a stat when the ledger and the store know all about it."""

    def __init__(
        self,
        *,
        reader: ClipReader,
        ledger: Ledger,
        copies: LocalCopies,
        statuses: Statuses,
        question: Question,
        rule: WindowRule | None,
        engine: str,
        patience: Patience,
        retry_failed: bool = False,
    ) -> None:
        self.reader, self.ledger, self.statuses = reader, ledger, statuses
        self.copies = copies
        self.question, self.rule, self.engine = question, rule, engine
        self.patience, self.retry_failed = patience, retry_failed

    async def take(self, source: VideoSource, stamp: str = "") -> ClipIntake:
        """The clip's windows. Raises nothing but cancellation: what goes wrong becomes `failed`.

        `stamp` is the file's, where the caller has it already; then a clip that is known costs no thread.
        """
        taken = ClipIntake(clip_name(source))
        content = UNKNOWN_CONTENT
        try:
            if stamp and (known := self.ledger.content_of(source.location, stamp)):
                content = known
            else:
                content, stamp = await patiently(lambda: self._content_of(source), self.patience)
            if not self._is_settled_failure(taken, content):
                await self._add_work(taken, source, content, stamp)
        except FramefleetError as error:
            self._fail(taken, content, error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the clip must not be lost
            _log.exception("a fault of framefleet's own on %s", taken.clip)
            self._fail(taken, content, error)
        if not taken.work:
            self.done(taken.clip)
        return taken

    def done(self, clip: str) -> None:
        """Nothing of the clip is in flight any more."""
        self.copies.let_go(clip)

    def glance(self, source: VideoSource) -> ClipIntake | None:
        """As `take`, but from the ledger alone; None when the clip would have to be read. Blocks for a stat."""
        try:
            content = self.ledger.content_of(source.location, stamp_of(source.location))
        except (OSError, ValueError):
            return None
        spans: Sequence[Span | None] | None = [None]
        if content is not None and self.rule is not None:
            spans = self.ledger.windows_of(content, self.rule.key)
        if content is None or spans is None:
            return None
        return self._sort(ClipIntake(clip_name(source)), source, content, "", spans)

    def note(self, record: CaptionRecord) -> None:
        """The store has it now."""
        self.statuses.put(record.digest, record.status)

    async def _content_of(self, source: VideoSource) -> tuple[str, str]:
        if source.kind == "url":
            return await asyncio.to_thread(remote_content_digest, source.location), ""
        stamp = await _stamp_of(source)
        if stamp and (known := self.ledger.content_of(source.location, stamp)):
            return known, stamp
        content = await self.reader.digest(source)
        if await _stamp_of(source) != stamp:
            raise SourceUnavailable(
                "the clip changes while it is read", given=repr(source.name), remedy="run again later"
            )
        self.ledger.remember_content(source.location, stamp, content)
        return content, stamp

    def _is_settled_failure(self, taken: ClipIntake, content: str) -> bool:
        """Whether an earlier run found that this content cannot be cut into windows (it has no other record then)."""
        if self.rule is None or self.retry_failed:
            return False
        status = self.statuses.get(self._clip_key(taken.clip, content))
        if status != "failed" or self.ledger.windows_of(content, self.rule.key) is not None:
            return False
        taken.skipped[status] += 1
        return True

    async def _add_work(self, taken: ClipIntake, source: VideoSource, content: str, stamp: str) -> None:
        if self.rule is None:
            self._sort(taken, source, content, stamp, [None])
            return
        scanned, spans = None, self.ledger.windows_of(content, self.rule.key)
        if spans is None:
            source, scanned = await patiently(lambda: self._scan(source), self.patience)
            spans = await cut_clip(self.reader, scanned, self.rule, self.question.frames)
            self.ledger.remember_windows(content, self.rule.key, spans)
        self._sort(taken, source, content, stamp, spans)
        if taken.work:
            if scanned is None:
                source, scanned = await patiently(lambda: self._scan(source), self.patience)
            taken.work = [msgspec.structs.replace(work, source=source, scanned=scanned) for work in taken.work]

    async def _scan(self, source: VideoSource) -> tuple[VideoSource, ScannedClip]:
        """The clip on this machine, and its scan."""
        local = await self.copies.of(source, self.question.frames)
        return local, await self.reader.scan(local, self.question.frames)

    def _sort(
        self, taken: ClipIntake, source: VideoSource, content: str, stamp: str, spans: Sequence[Span | None]
    ) -> ClipIntake:
        """Each window under what is to be done or what is there."""
        for span in spans:
            request = self.question.of(taken.clip, content, span)
            status = self.statuses.get(request.digest)
            if status is None or (status == "failed" and self.retry_failed):
                taken.work.append(Work(request=request, source=source, stamp=stamp))
            else:
                taken.skipped[status] += 1
        return taken

    def _fail(self, taken: ClipIntake, content: str, error: Exception) -> None:
        taken.work.clear()
        taken.skipped.clear()
        key = self._clip_key(taken.clip, content)
        status = self.statuses.get(key)
        if status is not None and not self.retry_failed:
            taken.skipped[status] += 1
        else:
            record = failure(self.question.of(taken.clip, content, None), error, self.engine)
            taken.failed = msgspec.structs.replace(record, digest=key)

    def _clip_key(self, clip: str, content: str) -> str:
        """The digest for a clip's failure as a whole; with windows it must not be that of the whole clip's caption."""
        digest = self.question.of(clip, content, None).digest
        return digest if self.rule is None else blake2b(f"{digest}{self.rule.key}".encode(), digest_size=16).hexdigest()


async def _stamp_of(source: VideoSource) -> str:
    """A local file's stamp; empty for what has none. Raises SourceNotFound."""
    if source.kind != "file":
        return ""
    try:
        return await asyncio.to_thread(stamp_of, source.location)
    except (OSError, ValueError) as error:
        raise SourceNotFound(
            "cannot read the clip", given=f"{source.name!r} ({getattr(error, 'strerror', None) or error})"
        ) from error
