"""Every corpus file through the DeepStream backend on its software pool: the right frames, or the reason."""

import pytest
from corpus_truth import all_truths, faults

from framefleet.decode.backends.deepstream import DeepStreamBackend
from framefleet.decode.choose import disbelieve
from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import make_plan, scan_timed
from framefleet.errors import DecodeError, SourceError
from framefleet.media.source import VideoSource

OPTIONS = DecodeOptions(num_frames=8, max_output_bytes=1 << 30, pool_size=2)
MOST_PIXELS_A_SIDE = 5000  # 8K in software takes its time, and teaches nothing here


@pytest.fixture(scope="module")
def backend():
    made = DeepStreamBackend("framefleet.decode.deepstream.fake:FakePool")
    yield made
    made.close()


TRUTHS = [truth for truth in all_truths() if (truth.facts["display_width"] or 0) < MOST_PIXELS_A_SIDE]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name[:40])
def test_right_or_refused(backend, truth):
    frames, reason = decode(backend, truth)
    if frames is None:
        assert len(reason) > len("no")
        return
    assert not truth.must_fail
    assert reason is None
    assert faults(truth, frames) == []


def decode(backend, truth):
    """The frames, or why there are none. A whole file that was not refused must give its frames."""
    try:
        clip, _ = scan_timed(VideoSource.of(truth.path), OPTIONS)
        if reason := backend.refuse(clip.info, clip.index):
            return None, reason
        plan = make_plan(clip, OPTIONS)
        frames = backend.decode(clip, plan, OPTIONS)
    except (SourceError, DecodeError) as error:
        if truth.is_whole:
            raise
        return None, str(error)
    return frames, disbelieve(frames, plan, clip.index)
