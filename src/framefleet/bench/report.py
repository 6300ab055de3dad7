"""A report: one self-contained HTML file that works offline, the same as Markdown, and as JSON.

`Report` is what all commands of the bench fill in (see reports.py); this only writes it down.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefleet.store.disk import store_errors

Kind = Literal["text", "facts", "table", "chart", "code"]
Tone = Literal["clear", "unclear", "bad"]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a section."""

    kind: Kind
    text: str = ""
    """Of text and code; of a chart what it shows, in a sentence."""
    svg: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Of a table; facts are rows of two."""
    strong: tuple[int, ...] = ()
    """Rows that stand out."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A heading and what is under it."""

    title: str
    blocks: tuple[Block, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `raw` is what the JSON file holds besides."""

    title: str
    verdict: str
    """One sentence."""
    tone: Tone
    advice: tuple[str, ...] = ()
    sections: tuple[Section, ...]
    raw_files: tuple[str, ...] = ()
    """Names of files beside the report."""


def text(words: str) -> Block:
    """A paragraph."""
    return Block(kind="text", text=words)


def code(words: str) -> Block:
    """To be copied."""
    return Block(kind="code", text=words)


def facts(pairs: Mapping[str, object]) -> Block:
    """Names and values."""
    return Block(kind="facts", rows=tuple((name, str(value)) for name, value in pairs.items()))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], strong: Sequence[int] = ()) -> Block:
    """Cells are text already."""
    return Block(kind="table", columns=tuple(columns), rows=tuple(map(tuple, rows)), strong=tuple(strong))


def chart(svg: str, about: str) -> Block:
    """A drawing with its sentence."""
    return Block(kind="chart", svg=svg, text=about)


def write_report(report: Report, folder: Path, raw: Any) -> dict[str, Path]:
    """`report.html`, `report.md` and `report.json` in `folder`. Raises StoreError."""
    texts = {
        "html": as_html(report),
        "md": as_markdown(report),
        "json": msgspec.json.format(msgspec.json.encode(raw), indent=1).decode() + "\n",
    }
    paths = {kind: folder / f"report.{kind}" for kind in texts}
    with store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for kind, path in paths.items():
            path.write_text(texts[kind], encoding="utf-8")
    return paths


def as_markdown(report: Report) -> str:
    """Without drawings: their sentences stay."""
    lines = [f"# {report.title}", "", f"**{report.verdict}**", ""]
    lines += [f"- {one}" for one in report.advice] + [""] * bool(report.advice)
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_markdown(block), ""]
    if report.raw_files:
        lines += ["Raw data: " + ", ".join(f"[{name}]({name})" for name in report.raw_files), ""]
    return "\n".join(lines)


def as_html(report: Report) -> str:
    """One page, no links to anything but the raw files beside it."""
    body = [
        f"<h1>{html.escape(report.title)}</h1>",
        f'<p class="verdict {report.tone}">{html.escape(report.verdict)}</p>',
    ]
    if report.advice:
        body.append("<ul>" + "".join(f"<li>{html.escape(one)}</li>" for one in report.advice) + "</ul>")
    for section in report.sections:
        blocks = "".join(_html(block) for block in section.blocks)
        body.append(f"<section><h2>{html.escape(section.title)}</h2>{blocks}</section>")
    if report.raw_files:
        links = ", ".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a>' for name in report.raw_files)
        body.append(f"<footer>Raw data: {links}</footer>")
    return _PAGE.format(title=html.escape(report.title), style=_STYLE, body="\n".join(body))


def _markdown(block: Block) -> list[str]:
    match block.kind:
        case "code":
            return ["```", block.text.rstrip(), "```"]
        case "facts":
            return [f"- {name}: {value}" for name, value in block.rows]
        case "table":
            rows = [[cell.replace("|", "\\|") for cell in row] for row in block.rows]
            rule = ["---"] * len(block.columns)
            return ["| " + " | ".join(row) + " |" for row in (list(block.columns), rule, *rows)]
        case "chart":
            return [f"(drawing in report.html) {block.text}"]
    return [block.text]


def _html(block: Block) -> str:
    match block.kind:
        case "code":
            return f"<pre>{html.escape(block.text)}</pre>"
        case "facts":
            return (
                "<dl>" + "".join(f"<dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd>" for n, v in block.rows) + "</dl>"
            )
        case "table":
            return _html_table(block)
        case "chart":
            return (
                f"<figure>{block.svg}<figcaption>{html.escape(block.text)}</figcaption></figure>" if block.svg else ""
            )
    return f"<p>{html.escape(block.text)}</p>"


def _html_table(block: Block) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in block.columns)
    rows = []
    for number, row in enumerate(block.rows):
        mark = ' class="strong"' if number in block.strong else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body><main>
{body}
</main></body></html>
"""
_STYLE = """
:root{--ink:#1d2330;--soft:#5b6475;--line:#d9dee7;--track:#eef1f6;--page:#fff;--card:#f7f9fc;--clear:#0f7b53;--unclear:#9a6700;
--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaf0;--soft:#a3adbd;--line:#333c4b;--track:#232b38;--page:#12161d;--card:#1a202a;
--clear:#4cc38a;--unclear:#e2b341;--bad:#ff8b7e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:860px;margin:0 auto;padding:32px 20px 60px}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 14px}
h2{font-size:1.08rem;margin:34px 0 10px;padding-top:14px;border-top:1px solid var(--line)}
.verdict{font-size:1.12rem;padding:14px 18px;border-radius:8px;background:var(--card);
border-left:5px solid var(--clear);margin:0}
.verdict.unclear{border-color:var(--unclear)}.verdict.bad{border-color:var(--bad)}
ul{padding-left:20px;margin:14px 0}li{margin:5px 0}
figure{margin:14px 0 20px}figcaption,.legend,footer{color:var(--soft);font-size:.88rem}
figcaption{margin-top:4px}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--soft)}svg text.strong{fill:var(--ink);font-weight:600}svg text.name{font-size:12.5px}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}.track{fill:var(--track)}
.mark{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}.whisker{stroke:var(--soft);stroke-width:2}
.legend{margin:6px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}tr.strong td{font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:8px 0;font-size:.94rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:12px 14px;
overflow-x:auto;font-size:.86rem;white-space:pre-wrap;overflow-wrap:anywhere}
a{color:inherit}footer{margin-top:34px}
"""
