"""Contact sheets: frames on one PNG with a label under each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from framefleet.cli.render import printable
from framefleet.decode.decoder import DecodedFrames
from framefleet.errors import ConfigError

_PAPER, _INK, _FAINT = (250, 250, 248), (24, 24, 28), (120, 120, 126)
_GAP = 10
_SEAM_PX = 4
_FONT_PX = 13
_LINE_PX = 17
_MAX_TILES = 400


@dataclass(frozen=True, slots=True)
class Tile:
    """A picture `[H, W, 3]` uint8 RGB and the words under it; newlines are kept, long lines are wrapped."""

    picture: Any
    label: str


def frame_tiles(frames: DecodedFrames) -> list[Tile]:
    """One tile per frame, labelled with its time and its row among the clip's frames."""
    pairs = zip(frames.data, frames.pts_s, frames.indices, strict=True)
    return [Tile(picture, f"{pts_s:.3f} s  frame {row}") for picture, pts_s, row in pairs]


def strip(frames: DecodedFrames, num_frames: int) -> Any:
    """`num_frames` of the frames side by side, left to right in time, with a gap between: one picture `[H, W, 3]`."""
    rows = np.round(np.linspace(0, len(frames) - 1, min(num_frames, len(frames)))).astype(int)
    gap = np.full((frames.data.shape[1], _SEAM_PX, 3), _PAPER, np.uint8)
    pieces = [piece for row in rows for piece in (frames.data[row], gap)]
    return np.concatenate(pieces[:-1], axis=1)


def write_sheet(path: Path, tiles: Sequence[Tile], *, title: str, columns: int = 4, tile_width: int = 320) -> None:
    """Draw the tiles in rows of `columns` and save a PNG. Raises ConfigError for a place that cannot be written."""
    sheet = draw_sheet(tiles[:_MAX_TILES], title=title, columns=columns, tile_width=tile_width)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path, format="PNG")
    except OSError as error:
        raise ConfigError("cannot write the sheet", given=f"{str(path)!r} ({error.strerror})") from error


def draw_sheet(tiles: Sequence[Tile], *, title: str, columns: int, tile_width: int) -> Image.Image:
    """The sheet as an RGB image. Tiles of one row stand on one line, each scaled to `tile_width`."""
    font = ImageFont.load_default(_FONT_PX)
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    drawn = [_row(row, tile_width, font) for row in rows]
    heading = _LINE_PX + 2 * _GAP
    width = _GAP + min(columns, max(1, len(tiles))) * (tile_width + _GAP)
    sheet = Image.new("RGB", (width, heading + sum(row.height for row in drawn)), _PAPER)
    ImageDraw.Draw(sheet).text((_GAP, _GAP), _fit(printable(title), width - 2 * _GAP, font), _INK, font)
    top = heading
    for row in drawn:
        sheet.paste(row, (0, top))
        top += row.height
    return sheet


def _row(tiles: Sequence[Tile], tile_width: int, font: Any) -> Image.Image:
    pictures = [_scaled(tile.picture, tile_width) for tile in tiles]
    labels = [_wrapped(tile.label, tile_width, font) for tile in tiles]
    tallest = max(p.height for p in pictures)
    height = tallest + max(map(len, labels)) * _LINE_PX + 2 * _GAP
    row = Image.new("RGB", (_GAP + len(tiles) * (tile_width + _GAP), height), _PAPER)
    pen = ImageDraw.Draw(row)
    for column, (picture, lines) in enumerate(zip(pictures, labels, strict=True)):
        left = _GAP + column * (tile_width + _GAP)
        row.paste(picture, (left, tallest - picture.height))
        for number, line in enumerate(lines):
            pen.text((left, tallest + 4 + number * _LINE_PX), line, _FAINT if number == 0 else _INK, font)
    return row


def _scaled(picture: Any, width: int) -> Image.Image:
    image = Image.fromarray(np.asarray(picture))
    height = max(1, round(image.height * width / image.width))
    return image.resize((width, min(height, 4 * width)), Image.Resampling.LANCZOS)


def _wrapped(label: str, width: int, font: Any) -> list[str]:
    """The label's lines, broken at spaces to fit `width` pixels."""
    lines = []
    for paragraph in label.split("\n"):
        line = ""
        for word in printable(paragraph).split(" "):
            longer = f"{line} {word}".lstrip()
            if line and font.getlength(longer) > width:
                lines.append(_fit(line, width, font))
                longer = word
            line = longer
        lines.append(_fit(line, width, font))
    return lines


def _fit(text: str, width: int, font: Any) -> str:
    """`text`, with its middle left out if it is wider than `width` pixels."""
    keep = len(text)
    short = text
    while keep > 2 and font.getlength(short) > width:
        keep -= 1
        short = f"{text[: keep // 2]}…{text[len(text) - keep // 2 :]}"
    return short
