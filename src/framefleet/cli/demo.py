"""`framefleet demo`: the whole way on the sample clips: caption, judge by the truth, search, draw."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json
from framefleet.cli.progress import ProgressLine
from framefleet.cli.render import builtins_of, note, show, show_json

if TYPE_CHECKING:
    from framefleet.bench.demo_run import DemoCaption, DemoResult, DemoSearch

Folder = Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the store and the sheet go.")]


def demo(output: Folder = Path("demo-output"), as_json: Json = False) -> ExitCode:
    """Caption the 24 sample clips here with the bundled model, judge the captions by the truth, search, draw a sheet.

    The exit code says whether the captions are good and the searches find the right clips.
    """
    from framefleet.bench.demo_run import run_demo

    if not as_json:
        note("captioning the 24 sample clips with the bundled model (loading it takes a few seconds) ...")
    with ProgressLine(is_quiet=as_json) as line:
        result = run_demo(output, on_progress=line.update)
    sheet = _draw(output / "sheet.png", result)
    if as_json:
        show_json({**builtins_of(result), "sheet": str(sheet), "is_passed": result.is_passed})
    else:
        _show(result, sheet)
    return ExitCode.OK if result.is_passed else ExitCode.CHECK_FAILED


def _draw(path: Path, result: DemoResult) -> Path:
    from framefleet.cli.sheet import Tile, strip, write_sheet
    from framefleet.decode.session import decode

    tiles = [
        Tile(
            strip(decode(c.clip, num_frames=3, max_pixels=240 * 136), 3), f"{Path(c.clip).name}{_mark(c)}\n{c.caption}"
        )
        for c in result.captions
    ]
    title = f"framefleet demo: {len(tiles)} clips, first, middle and last frame, with the captions of the bundled model"
    write_sheet(path, tiles, title=title, columns=2, tile_width=720)
    return path


def _mark(caption: DemoCaption) -> str:
    return "" if caption.is_exact else f"  (truth: {caption.truth})"


def _show(result: DemoResult, sheet: Path) -> None:
    for caption in result.captions:
        show(f"{Path(caption.clip).name}")
        show(f"  said:  {caption.caption or caption.status}")
        show(f"  truth: {'the same' if caption.is_exact else caption.truth}")
    show()
    show("right: " + ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in result.attributes.items()))
    exact = sum(c.is_exact for c in result.captions)
    summary = result.summary
    speed = f" in {summary.seconds:.1f} s" if summary.windows else "; they were there from an earlier run"
    show(f"score {result.score:.1%}; {exact} of {len(result.captions)} captions word for word{speed}")
    for search in result.searches:
        _show_search(search, result.store)
    show(f"\nstore: {result.store}\nsheet: {sheet}")
    show("All right." if result.is_passed else "NOT as it should be.")


def _show_search(search: DemoSearch, store: str) -> None:
    show(f"\nframefleet search {shlex.quote(search.query)} --store {shlex.quote(store)}")
    for hit in search.hits:
        show(f"  {Path(hit).name}{'' if hit in search.expected else '  (wrong)'}")
    names = ", ".join(Path(clip).name for clip in search.expected)
    show("  right: the clips of which it is true" if search.is_right else f"  WRONG: it is true of {names}")
