import itertools

import numpy as np
import pytest
from PIL import Image

from framefleet.cli.sheet import Tile, draw_sheet, write_sheet
from framefleet.errors import ConfigError

RED, GREEN = (255, 0, 0), (0, 255, 0)


def plain(colour, height=90, width=160):
    return np.full((height, width, 3), colour, np.uint8)


def colours_in_row(sheet: Image.Image, y: int) -> list[tuple[int, ...]]:
    """Colours met from left to right, repeats left out."""
    line = [sheet.getpixel((x, y)) for x in range(sheet.width)]
    return [line[0]] + [b for a, b in itertools.pairwise(line) if a != b]


def test_tiles_stand_in_order_left_to_right_then_down():
    sheet = draw_sheet(
        [Tile(plain(RED), "1"), Tile(plain(GREEN), "2"), Tile(plain(RED), "3")], title="t", columns=2, tile_width=100
    )
    paper = sheet.getpixel((0, 0))
    assert colours_in_row(sheet, 60) == [paper, RED, paper, GREEN, paper]
    second_row = [y for y in range(sheet.height) if sheet.getpixel((60, y)) == RED]
    assert max(second_row) > 130


def test_pictures_keep_their_shape():
    sheet = draw_sheet([Tile(plain(RED, 200, 100), "tall")], title="", columns=1, tile_width=100)
    reds = [(x, y) for x in range(sheet.width) for y in range(sheet.height) if sheet.getpixel((x, y)) == RED]
    xs, ys = zip(*reds, strict=True)
    assert (max(xs) - min(xs) + 1, max(ys) - min(ys) + 1) == (100, 200)


def test_long_labels_are_wrapped_and_hostile_ones_escaped():
    short = draw_sheet([Tile(plain(RED), "word")], title="", columns=1, tile_width=160)
    long = draw_sheet([Tile(plain(RED), "word " * 40 + "\x1b[2J")], title="", columns=1, tile_width=160)
    assert long.height > short.height + 4 * 17
    assert long.width == short.width


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the sheet"):
        write_sheet(tmp_path / "file" / "x.png", [Tile(plain(RED), "")], title="")
