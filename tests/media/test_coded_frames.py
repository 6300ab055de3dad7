"""What is left out of a run, against a plain search through all that leans on what."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefleet.media.coded_frames import CodedFrames


@st.composite
def streams(draw):
    """(packet of each frame, frames each leans on); packets without frames are holes in the numbers."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    packet = [number for number, size in enumerate(sizes) for _ in range(size)]
    needs = [draw(st.sets(st.integers(0, frame - 1), max_size=3)) if frame else set() for frame in range(len(packet))]
    return sizes, packet, needs


def reached(frame, needs):
    return {frame}.union(*(reached(other, needs) for other in needs[frame]))


@given(streams(), st.data())
def test_nothing_needed_is_left_out_and_all_else_is(stream, data):
    sizes, packet, needs = stream
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = data.draw(st.integers(first, len(sizes) - 1))
    run = range(first, last + 1)
    needs = [{other for other in others if packet[other] >= first} for others in needs]
    filled = [number for number in run if sizes[number]]
    wanted = data.draw(st.sets(st.sampled_from(filled)) if filled else st.just(set()))
    roots = data.draw(st.sets(st.sampled_from(run), max_size=2))
    shown = {number: max(f for f, p in enumerate(packet) if p == number) for number in filled}
    asked = {shown[number] for number in wanted} | {f for f, p in enumerate(packet) if p in roots and p in run}
    kept = set().union(*(reached(frame, needs) for frame in asked))

    edges = [(frame, other) for frame, others in enumerate(needs) for other in sorted(others)]
    coded = CodedFrames(np.array(packet, np.int64), np.array(edges, np.int64).reshape(-1, 2))
    skip, cuts = coded.left_out(first, last, np.array(sorted(roots)), np.array(sorted(wanted), np.int64))

    fed = {packet[frame] for frame in kept}
    assert skip.tolist() == [number for number in filled if number not in fed]
    places = {frame: frame - packet.index(packet[frame]) for frame in range(len(packet))}
    assert cuts.tolist() == [
        [number, places[frame]] for frame, number in enumerate(packet) if number in fed and frame not in kept
    ]


def test_one_wanted_frame_of_a_pyramid():
    """Packets: key; [4, 2, 1]; 2 shown; 3; 4 shown."""
    packet = np.array([0, 1, 1, 1, 2, 3, 4])
    needs = np.array([[1, 0], [2, 0], [2, 1], [3, 0], [3, 2], [4, 2], [5, 2], [5, 1], [6, 1]])
    coded = CodedFrames(packet, needs)
    skip, cuts = coded.left_out(0, 4, np.array([0]), np.array([4]))
    assert skip.tolist() == [2, 3]
    assert cuts.tolist() == [[1, 1], [1, 2]]
