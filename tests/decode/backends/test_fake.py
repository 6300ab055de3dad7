"""The fake: what it draws can be read back, and each fault is the fault it says."""

import dataclasses
import multiprocessing
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.backends.fake import FakeBackend, FakeClip, draw_frame, read_barcode
from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import decode
from framefleet.errors import ConfigError, DecodeError, DecodeTimeout, SourceCorrupt, SourceNotFound
from framefleet.media.source import VideoSource


def rows_read(frames):
    return [read_barcode(frame, frames.info.width) for frame in frames.data]


@given(st.integers(0, 1023), st.integers(160, 1920), st.floats(0.5, 3))
def test_the_barcode_reads_back_at_any_size(row, native_width, scale):
    width, height = round(native_width * scale), round(180 * scale)
    assert read_barcode(draw_frame(row, width, height, native_width), native_width) == row


def test_frames_of_one_clip_differ_and_so_do_clips():
    assert not np.array_equal(draw_frame(0, 320, 180, 320)[20:], draw_frame(1, 320, 180, 320)[20:])
    assert not np.array_equal(draw_frame(0, 320, 180, 320), draw_frame(0, 320, 180, 320, seed=7))
    assert np.array_equal(draw_frame(5, 320, 180, 320), draw_frame(5, 320, 180, 320))


def test_every_kind_of_source(tmp_path):
    text = b'fake:{"num_frames":7}'
    file = tmp_path / "clip.mp4"
    file.write_bytes(text)
    plain = tmp_path / "other.mp4"
    plain.write_bytes(b"anything")
    for source in (text, text.decode(), file, VideoSource.of(text), FakeClip(num_frames=7).source):
        assert rows_read(decode(source, backend="fake", num_frames=3)) == [0, 3, 6]
    assert decode(plain, backend="fake").total_num_frames == 60
    with pytest.raises(SourceNotFound):
        decode(tmp_path / "none.mp4", backend="fake")


@pytest.mark.parametrize("text", [b"fake:{", b'fake:{"frames":1}', b'fake:{"fault":"sulk"}'])
def test_a_wrong_description_is_told(text):
    with pytest.raises(ConfigError, match="fake clip"):
        decode(text, backend="fake")


def test_it_takes_no_real_clip():
    backend = FakeBackend()
    clip = backend.scan(FakeClip().source)
    assert backend.refuse(clip.info, clip.index) is None
    assert backend.refuse(dataclasses.replace(clip.info, codec="h264"), clip.index)


def test_faults_that_raise():
    with pytest.raises(DecodeError):
        decode(FakeClip(fault="error").source, backend="fake")
    with pytest.raises(SourceCorrupt):
        decode(FakeClip(scan_error="SourceCorrupt").source, backend="fake")
    with pytest.raises(DecodeTimeout):
        decode(FakeClip(fault="slow", slow_s=30).source, backend="fake", timeout_s=0.05)
    with pytest.raises(DecodeError, match="says 0 are missing"):
        decode(FakeClip(fault="short").source, backend="fake")
    with pytest.raises(DecodeError, match="not those of the clip's index"):
        decode(FakeClip(fault="liar").source, backend="fake")


def test_a_slow_clip_in_time_is_a_good_clip():
    assert rows_read(decode(FakeClip(num_frames=2, fault="slow", slow_s=0.01).source, backend="fake")) == [0, 1]


def test_bad_rows_are_left_out_and_told():
    frames = decode(FakeClip(num_frames=10, fault="corrupt", bad_rows=(4,)).source, backend="fake", num_frames=10)
    assert rows_read(frames) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert frames.stats.num_missing == frames.stats.num_corrupt == 1


def test_a_passing_fault_strikes_once(tmp_path):
    source = FakeClip(fault="error", once=str(tmp_path / "struck")).source
    with pytest.raises(DecodeError):
        decode(source, backend="fake")
    assert len(decode(source, backend="fake")) == 16


def decode_in_child(source):
    process = multiprocessing.get_context("spawn").Process(target=decode, args=(source,), kwargs={"backend": "fake"})
    process.start()
    return process


def test_crash_kills_the_process():
    process = decode_in_child(FakeClip(fault="crash").source)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_hang_never_returns():
    process = decode_in_child(FakeClip(fault="hang").source)
    time.sleep(3)
    assert process.is_alive()
    process.kill()
    process.join(10)


def test_no_media_library_is_imported():
    code = "import framefleet.decode.backends.fake, sys; print([m for m in ('av', 'cv2', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_options_reach_it():
    frames = decode(FakeClip().source, DecodeOptions(backend="fake", num_frames=2, size=(640, 360)))
    assert frames.data.shape == (2, 360, 640, 3)
