"""Errors and odd names on their way between a pool and its workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet import errors
from framefleet.decode.messages import Problem, restored, sendable
from framefleet.decode.options import DecodeOptions
from framefleet.decode.tasks import Job
from framefleet.errors import DecoderBug, FramefleetError, SourceCorrupt, SourceTooLarge
from framefleet.media.source import VideoSource

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, FramefleetError)]


def caused_by(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_the_tree_arrives_as_it_was(kind):
    error = Problem.of(kind("what", given="given", allowed="allowed", remedy="remedy")).error("a.mp4")
    assert type(error) is kind
    assert (error.what, error.given, error.allowed, error.remedy) == ("what", "given", "allowed", "remedy")


def test_a_third_partys_subclass_arrives_as_the_class_above_it():
    kind = type("PluginCorrupt", (SourceCorrupt,), {})
    assert type(Problem.of(kind("what")).error("a.mp4")) is SourceCorrupt


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("short"), MemoryError),
        (caused_by(SourceTooLarge("large"), MemoryError()), MemoryError),
        (SourceTooLarge("large"), SourceTooLarge),
        (caused_by(SourceCorrupt("corrupt"), MemoryError()), SourceCorrupt),
        (ZeroDivisionError("by zero"), DecoderBug),
        (KeyError("x"), DecoderBug),
    ],
)
def test_memory_shortage_is_told_from_a_large_clip_and_from_a_bug(error, kind):
    assert type(Problem.of(error).error("a.mp4")) is kind


def test_a_class_of_the_same_name_is_no_error_of_ours():
    kind = type("SourceCorrupt", (Exception,), {})
    assert type(Problem.of(kind("theirs")).error("a.mp4")) is DecoderBug


@given(st.text(st.characters(codec=None)))
def test_any_name_survives_and_any_text_can_be_sent(name):
    source = VideoSource("file", name.replace("\0", ""))
    job = Job("decode", source, DecodeOptions())
    sendable(job).source.location.encode()
    assert restored(sendable(job)) == job
    Problem.of(SourceCorrupt("what", given=name)).given.encode()
