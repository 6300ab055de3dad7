"""All eight orientations that a display matrix can ask for, by the standard's own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from framefleet.media.orientation import Orientation, orientation_of_matrix

ONE = 1 << 16


def shown(picture, matrix):
    """`picture` as ISO/IEC 14496-12 shows it: (x, y) goes to (a x + c y, b x + d y), then into view."""
    a, b, c, d = (matrix[i] // ONE for i in (0, 1, 3, 4))
    height, width = picture.shape
    points = {(a * x + c * y, b * x + d * y): picture[y, x] for y in range(height) for x in range(width)}
    xs, ys = sorted({x for x, _ in points}), sorted({y for _, y in points})
    return np.array([[points[x, y] for x in xs] for y in ys])


@pytest.mark.parametrize("a", [-1, 0, 1])
@pytest.mark.parametrize("b", [-1, 0, 1])
@pytest.mark.parametrize("c", [-1, 0, 1])
@pytest.mark.parametrize("d", [-1, 0, 1])
def test_turns_and_mirrors(a, b, c, d):
    if abs(a) + abs(b) != 1 or abs(c) + abs(d) != 1 or a * d - b * c == 0:
        return
    matrix = (a * ONE, b * ONE, 0, c * ONE, d * ONE, 0, 0, 0, 1 << 30)
    turn = orientation_of_matrix(matrix)
    picture = np.arange(12).reshape(3, 4)
    ours = picture[:, ::-1] if turn.hflip else picture
    ours = np.rot90(ours, -(turn.rotation_deg // 90))
    assert np.array_equal(ours, shown(picture, matrix))
    assert turn.swaps_sides == (ours.shape == (4, 3))


def test_scaled_and_empty_matrices():
    assert orientation_of_matrix((2 * ONE, 0, 0, 0, 2 * ONE, 0, 0, 0, 1 << 30)) == Orientation()
    assert orientation_of_matrix((0,) * 9) == Orientation()
    assert orientation_of_matrix((ONE, ONE // 100, 0, -ONE // 100, ONE, 0, 0, 0, 1 << 30)) == Orientation()


@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize(
    ("asked", "turn", "tilt"), [(30, 0, 30), (50, 90, -40), (100, 90, 10), (200, 180, 20), (359, 0, -1)]
)
def test_what_is_left_of_other_angles_is_a_tilt(asked, turn, tilt, hflip):
    cos, sin = (round(f(np.radians(asked)) * ONE) for f in (np.cos, np.sin))
    a, b = (-cos, -sin) if hflip else (cos, sin)
    assert orientation_of_matrix((a, b, 0, -sin, cos, 0, 0, 0, 1 << 30)) == Orientation(turn, hflip, tilt)
