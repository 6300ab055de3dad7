"""Put the results of a call of run.sh where the benchmarks keep theirs, without the paths of the machine they are from.

    python benchmarks/card/keep.py all.tar.gz [--to benchmarks]

benchmarks/NAME/raw/COMMIT/PART gets them; `tests`, `opens`, `clips`, `decode` and `deepstream` are nvdec's. Trials of
`decode` that are there already stay. Refuses, and writes nothing, when a path of the machine is left in some file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
from pathlib import Path, PurePosixPath

NVDEC = ("tests", "opens", "clips", "decode", "decode_once", "deepstream")
BENCHMARK = dict.fromkeys(NVDEC, "nvdec") | {"serve_mps": "serve_e2e"}
"""Of a part, where it has not its name."""
TEXT = {".json", ".jsonl", ".txt", ".md", ".html", ".svg"}
TRIALS = "trials.json"
BEGIN = r"(?<![\w.:/<>-])"
TEMPORARY = re.compile(BEGIN + r"/tmp/[\w.-]+")
INTERPRETER = re.compile(BEGIN + r"/[\w./-]+/bin/(?=python)")
LIBRARY = re.compile(BEGIN + r"/[\w./-]*?/(?:lib/python3\.\d+(?:/(?:site|dist)-packages)?|(?:site|dist)-packages)")
PATH = re.compile(BEGIN + r"/(?:home|root|tmp|work|opt|mnt|data|srv)/[\w./-]*")
"""What no file may keep."""


def cleaned(text: str, places: dict[str, str]) -> str:
    """Names in place of folders, the innermost first."""
    for name, folder in sorted(places.items(), key=lambda one: -len(one[1])):
        text = text.replace(folder, name)
    return TEMPORARY.sub("RUN", LIBRARY.sub("PYTHON", INTERPRETER.sub("", text)))


def with_trials(kept: str, new: str) -> str:
    """The new run with the trials that only the kept one has, in the order of their times."""
    old, run = json.loads(kept), json.loads(new)
    if different := [name for name in ("machine", "settings") if old[name] != run[name]]:
        raise ValueError(f"kept trials are of another {' and '.join(different)}")
    missing = [trial for trial in old["trials"] if trial not in run["trials"]]
    run["trials"] = sorted([*missing, *run["trials"]], key=lambda trial: trial["at"])
    return json.dumps(run, indent=1)


def texts_in(archive: Path) -> dict[PurePosixPath, str]:
    """What is kept: text, by its path; archives of logs are not."""
    with tarfile.open(archive) as opened:
        members = {PurePosixPath(one.name): one for one in opened if one.isfile()}
        wanted = [path for path in members if path.suffix in TEXT or path.name == "COMMIT"]
        return {path: opened.extractfile(members[path]).read().decode(errors="replace") for path in wanted}


def keep(archive: Path, to: Path) -> list[Path]:
    """What was written. Raises ValueError when a path is left in a file, or kept trials cannot stand beside the new."""
    found = texts_in(archive)
    places = json.loads(found.pop(PurePosixPath("places.json")))
    commit = found.pop(PurePosixPath("COMMIT")).strip()
    out: dict[Path, str] = {}
    for path, text in found.items():
        if len(path.parts) < 2:
            continue
        part = path.parts[0]
        target = to / BENCHMARK.get(part, part) / "raw" / commit / part / PurePosixPath(*path.parts[1:])
        out[target] = cleaned(text, places)
        if path.name == TRIALS and target.exists():
            out[target] = with_trials(target.read_text(), out[target])
    if left := {f"{path.name}: {one}" for path, text in out.items() for one in PATH.findall(text)}:
        raise ValueError("paths of the machine are left:\n" + "\n".join(sorted(left)))
    for path, text in out.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(out)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("archive", type=Path)
    asked.add_argument("--to", type=Path, default=Path(__file__).parents[1])
    given = asked.parse_args()
    try:
        print("\n".join(map(str, keep(given.archive, given.to))))
    except ValueError as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
