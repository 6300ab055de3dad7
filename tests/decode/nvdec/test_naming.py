"""Pictures under the names of their packets, by stamp or by order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.nvdec.naming import SHOWN_IN_ORDER, names_for
from framefleet.errors import DecodeError


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9))
def test_by_order_whatever_the_stamps_and_however_late(delays, wrong):
    """A picture comes out some packets after its own went in; its stamp says nothing."""
    names, held, got = names_for("vp9"), [], []
    for number, delay in enumerate(delays):
        names.fed(100 + number)
        held.append(number)
        out = held[: max(0, len(held) - delay)]
        del held[: len(out)]
        got += names.of([(wrong, surface) for surface in out])
    got += names.of([(wrong, surface) for surface in held])
    names.end()
    assert got == [(100 + number, number) for number in range(len(delays))]


@pytest.mark.parametrize("codec", sorted(SHOWN_IN_ORDER))
def test_a_picture_too_many_or_too_few_is_an_error(codec):
    names = names_for(codec)
    names.fed(1)
    with pytest.raises(DecodeError, match="more pictures"):
        names.of([(1, "a"), (1, "hidden")])
    names = names_for(codec)
    names.fed(1)
    with pytest.raises(DecodeError, match="fewer pictures"):
        names.end()


def test_by_stamp_where_pictures_are_shown_in_another_order():
    names = names_for("h264")
    for stamp in (0, 2, 1):
        names.fed(stamp)
    assert names.of([(0, "I"), (1, "B")]) + names.of([(2, "P")]) == [(0, "I"), (1, "B"), (2, "P")]
    names.end()
