"""Laying pictures along the rows asked for: order, repeats, gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.backends.fake import FakeBackend, FakeClip
from framefleet.decode.choose import disbelieve
from framefleet.decode.decoder import DecodeStats
from framefleet.decode.deliver import deliver
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError
from framefleet.sampling.sampler import FrameTargets

CLIP = FakeBackend().scan(FakeClip(num_frames=50).source)


def lay(wanted, came):
    plan = plan_decode(CLIP.index, FrameTargets(np.array(wanted, np.int64)), 1, 1)
    pictures = np.array(came, np.uint8).reshape(-1, 1, 1, 1).repeat(3, axis=3)
    return plan, deliver(CLIP, plan.targets.rows, np.array(came, np.int64), pictures, DecodeStats())


@given(
    st.lists(st.integers(0, 49), min_size=1, max_size=10).map(sorted),
    st.sets(st.integers(0, 49), min_size=1).map(sorted),
)
def test_each_row_gets_its_own_picture(wanted, came):
    expected = [row for row in wanted if row in came]
    if not expected:
        with pytest.raises(DecodeError):
            lay(wanted, came)
        return
    plan, frames = lay(wanted, came)
    assert frames.data[:, 0, 0, 0].tolist() == frames.indices.tolist() == expected
    assert frames.stats.num_missing == len(wanted) - len(expected)
    assert frames.stats.output_bytes == frames.data.nbytes
    assert disbelieve(frames, plan, CLIP.index) is None


def test_what_is_complete_is_not_copied():
    pictures = np.zeros((2, 1, 1, 3), np.uint8)
    plan = plan_decode(CLIP.index, FrameTargets(np.array([3, 9])), 1, 1)
    assert deliver(CLIP, plan.targets.rows, np.array([3, 9]), pictures, DecodeStats()).data is pictures
