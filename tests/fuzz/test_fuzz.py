"""Damaged files in bulk: no hang, no crash of this process, and from a worker only errors of our tree.

FRAMEFLEET_FUZZ_FILES says how many (`make fuzz`: 50,000), FRAMEFLEET_FUZZ_SEED where to start. What was found once is
kept in `found.jsonl`, one recipe a line, and tried at every run.
"""

import os
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fuzz.mutator import Damage, apply, damage
from msgspec import structs

from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.errors import DecoderBug, DecoderLost, DecodeTimeout, FramefleetError
from framefleet.units import MIB, Span

NUM_FILES = int(os.environ.get("FRAMEFLEET_FUZZ_FILES", "2000"))
FIRST_SEED = int(os.environ.get("FRAMEFLEET_FUZZ_SEED", "0"))
FOUND = Path(__file__).parent / "found.jsonl"
CORPUS_FILES = Path(__file__).parent.parent / "corpus" / "files"
TOO_SLOW = {"pixel_bomb_8k.mp4", "h264_5120x2880.mp4", "many_frames_14000.mp4"}
CORPUS = {
    str(path.relative_to(CORPUS_FILES)): path.read_bytes()
    for path in sorted(CORPUS_FILES.rglob("*"))
    if path.is_file() and path.name not in TOO_SLOW
}
OPTIONS = DecodeOptions(num_frames=4, max_pixels=64 * 64, timeout_s=20, max_source_pixels=2048 * 2048)
VARIANTS = [
    *[OPTIONS] * 6,
    *(structs.replace(OPTIONS, backend=backend) for backend in ("pyav", "opencv", "torchcodec")),
    structs.replace(OPTIONS, frame_recovery=True),
    structs.replace(OPTIONS, deinterlace=True),
    structs.replace(OPTIONS, num_frames=None, rule="qwen3_vl", max_pixels=None, total_pixels=256 * 256, max_frames=8),
    structs.replace(OPTIONS, num_frames=None, fps=2.0, max_frames=4, span=Span(500_000_000, 1_500_000_000)),
]
"""Half of the files with the usual options, the others with each in its turn."""


@pytest.fixture(scope="module")
def pool():
    with DecodePool(workers=min(2, len(os.sched_getaffinity(0))), worker_bytes=1024 * MIB) as opened:
        yield opened


def verdict(pool, source, options):
    """The kind of outcome, or what is wrong with it."""
    try:
        frames = pool.run("decode", source, options)
    except DecoderBug as error:
        return "BUG " + error.what + "\n" + "".join(error.__notes__)
    except DecodeTimeout as error:
        return f"HANG {error}" if "killed" in error.what else "DecodeTimeout"
    except DecoderLost as error:
        return f"CRASH {error}"
    except FramefleetError as error:
        return type(error).__name__
    assert 1 <= len(frames) <= 8
    assert np.isfinite(frames.pts_s).all()
    assert (np.diff(frames.pts_s) >= 0).all()
    assert (np.diff(frames.indices) >= 0).all()
    assert 0 <= frames.indices.min() <= frames.indices.max() < frames.total_num_frames
    return "partial" if frames.stats.num_missing else "ok"


def try_one(pool, folder, recipe, options):
    content = apply(CORPUS[recipe.file], recipe.edits)
    if len(recipe.edits) % 2:  # half as bytes, half as a file: they are read in different ways
        return verdict(pool, content, options)
    path = folder / f"{threading.get_ident()}{Path(recipe.file).suffix}"
    path.write_bytes(content)
    return verdict(pool, path, options)


def is_bad(outcome):
    return outcome.split(" ")[0] in ("BUG", "HANG", "CRASH")


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_damaged_files_cost_nothing_but_themselves(pool, tmp_path, capsys):
    seeds = range(FIRST_SEED, FIRST_SEED + NUM_FILES)
    with ThreadPoolExecutor(4) as threads:
        recipes = [damage(seed, CORPUS) for seed in seeds]
        options = [VARIANTS[seed % len(VARIANTS)] for seed in seeds]
        outcomes = list(threads.map(lambda one, way: try_one(pool, tmp_path, one, way), recipes, options))
    bad = {recipe: outcome for recipe, outcome in zip(recipes, outcomes, strict=True) if is_bad(outcome)}
    counts = Counter(outcome.split(" ")[0] for outcome in outcomes)
    with capsys.disabled():
        sys.stdout.write(f"\nfuzz: {NUM_FILES} files from seed {FIRST_SEED}: {dict(counts)}\n")
    assert not bad, "\n".join(f"{recipe.to_json()}\n    {outcome}" for recipe, outcome in list(bad.items())[:20])
    assert counts["ok"] + counts["partial"] > NUM_FILES / 5, "the damage leaves nothing to decode"
    assert counts["SourceCorrupt"] > NUM_FILES / 50, "the damage does no harm"


def recipes_found():
    return [Damage.from_json(line) for line in FOUND.read_text().splitlines() if line]


@pytest.mark.parametrize("recipe", recipes_found(), ids=lambda recipe: f"{recipe.file}-{len(recipe.edits)}")
def test_what_was_found_once(pool, tmp_path, recipe):
    content = apply(CORPUS[recipe.file], recipe.edits)
    path = tmp_path / f"clip{Path(recipe.file).suffix}"
    path.write_bytes(content)
    outcomes = [verdict(pool, source, options) for source in (content, path) for options in VARIANTS[5:]]
    assert [outcome for outcome in outcomes if is_bad(outcome)] == []


def test_a_recipe_makes_the_same_bytes_again():
    for seed in range(300):
        recipe = damage(seed, CORPUS)
        again = Damage.from_json(recipe.to_json())
        assert again == recipe == damage(seed, CORPUS)
        assert apply(CORPUS[recipe.file], again.edits) == apply(CORPUS[recipe.file], recipe.edits)
