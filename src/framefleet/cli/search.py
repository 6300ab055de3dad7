"""`framefleet search`: windows whose captions fit the words, as a table, JSON lines or a sheet of frames."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json, Sheet, Store
from framefleet.cli.render import end_line, note, show, show_json, show_table
from framefleet.errors import DecodeError, SourceError
from framefleet.units import Span, s_to_ns

if TYPE_CHECKING:
    from framefleet.cli.sheet import Tile
    from framefleet.search.hit import Hit

Words = Annotated[str, typer.Argument(metavar="QUERY", help='What to look for; "words in quotes" as they stand.')]
Mode = Annotated[
    Literal["text", "semantic", "hybrid"],
    typer.Option(help="text: the words; semantic: the meaning (extra semantic); hybrid: both ranked together."),
]
_FRAMES_PER_HIT = 4
_TILE_PIXELS = 320 * 180


def search(
    query: Words,
    store: Store = "captions.lance",
    mode: Mode = "text",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Hits at most.")] = 10,
    clip: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only clips of this name.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only captions by this model.", show_default=False)] = None,
    sheet: Sheet = None,
    as_json: Json = False,
) -> ExitCode:
    """Find windows by their captions. With --json one object per hit, one a line, the best first."""
    hits = _find(query, store, mode, limit, clip, model)
    if sheet is not None:
        draw_hits(sheet, query, hits)
    if as_json:
        for rank, hit in enumerate(hits, start=1):
            show_json({"rank": rank, **_facts(hit)})
        return ExitCode.OK
    if not hits:
        note(f"nothing found for {query!r}")
    else:
        _show(hits)
    if sheet is not None:
        show(f"sheet: {sheet}")
    return ExitCode.OK


def _find(query: str, store: str, mode: str, limit: int, clip: str | None, model: str | None) -> list[Hit]:
    from framefleet.search.searcher import Searcher
    from framefleet.store.sink import open_store
    from framefleet.store.where import Where

    with open_store(store) as opened:
        found: list[Hit] = Searcher(opened, on_progress=_tell_embedding).search(
            query,
            mode=mode,  # type: ignore[arg-type]  # typer takes no other
            limit=limit,
            where=Where(clip=clip, model=model),
        )
    end_line()
    return found


def _tell_embedding(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rembedding captions: {done}/{total}\x1b[K")


def _facts(hit: Hit) -> dict[str, object]:
    import msgspec

    facts: dict[str, object] = msgspec.structs.asdict(hit)
    return facts


def _show(hits: Sequence[Hit]) -> None:
    if sys.stdout.isatty():
        rows = [[f"{hit.score:.3g}", _where(hit), hit.text] for hit in hits]
        show_table(["score", "clip and span", "caption"], rows)
        return
    for hit in hits:
        show(f"{hit.score:.3g}  {_where(hit)}\n    {' '.join(hit.text.split())}")


def _where(hit: Hit) -> str:
    known = hit.end_s > hit.start_s  # a server that decodes by itself does not tell the clip's length
    return f"{hit.clip} [{hit.start_s:.1f}-{hit.end_s:.1f} s]" if known else hit.clip


def draw_hits(path: Path, query: str, hits: Sequence[Hit]) -> None:
    """A sheet with a strip of frames per hit, its clip, span, score and caption under it."""
    from framefleet.cli.sheet import write_sheet

    tiles = [_hit_tile(hit) for hit in hits]
    write_sheet(path, tiles, title=f"{len(hits)} hits for: {query}", columns=1, tile_width=_FRAMES_PER_HIT * 240)


def _hit_tile(hit: Hit) -> Tile:
    import numpy as np

    from framefleet.cli.sheet import Tile, strip
    from framefleet.decode.session import decode

    label = f"{hit.score:.3g}  {_where(hit)}\n{hit.text}"
    span = Span(s_to_ns(hit.start_s), s_to_ns(hit.end_s)) if hit.end_s > hit.start_s else None
    try:
        frames = decode(hit.clip, num_frames=_FRAMES_PER_HIT, span=span, max_pixels=_TILE_PIXELS)
    except (SourceError, DecodeError) as error:  # moved or deleted since: the caption is still a hit
        return Tile(np.full((60, 320, 3), 200, np.uint8), f"{label}\nno frames: {error}")
    return Tile(strip(frames, _FRAMES_PER_HIT), label)
