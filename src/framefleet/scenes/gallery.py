"""The sample clips that ship with the package: 24 drawn scenes as video files, with their truth.

Reading them needs nothing; `python -m framefleet.scenes.gallery DIR` draws and encodes them anew (extra `opencv`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from framefleet.errors import SourceNotFound
from framefleet.scenes.captions import attributes_of, caption_of
from framefleet.scenes.sampler import sample_scene
from framefleet.scenes.truth import Scene, Truth

NUM_SAMPLES = 24
FIRST_SEED = 2000
"""Far from the training seeds (10,000,000 on) and the evaluation seeds (0 to 499)."""
_DRY = ((854, 480, 15), (1280, 720, 10), (960, 540, 12), (1920, 1080, 10), (640, 480, 24), (1280, 720, 12))
_RAIN = ((854, 480, 10), (640, 480, 12))  # rain is costly to encode


@dataclass(frozen=True, slots=True)
class SampleClip:
    """A shipped clip: its file, what is true of it, and the caption that says so."""

    path: Path
    truth: Truth
    caption: str
    seed: int
    width: int
    height: int
    fps: float
    duration_s: float


def samples_folder() -> Path:
    """Where the sample clips lie."""
    return Path(__file__).parent / "samples"


def sample_clips(folder: Path | None = None) -> list[SampleClip]:
    """The sample clips in the order of their names. Raises SourceNotFound where the folder holds no truth.json."""
    folder = folder or samples_folder()
    index = folder / "truth.json"
    if not index.is_file():
        raise SourceNotFound("no sample clips there", given=str(folder), remedy="reinstall framefleet")
    return [
        SampleClip(
            path=folder / entry["file"],
            truth=Truth.from_dict(entry["truth"]),
            **{k: entry[k] for k in ("caption", "seed", "width", "height", "fps", "duration_s")},
        )
        for entry in json.loads(index.read_text(encoding="utf-8"))["clips"]
    ]


def chosen_scenes(count: int = NUM_SAMPLES) -> list[Scene]:
    """Scenes for variety by a fixed rule: seeds upward, each kept if it shows a value that fewer than two show yet."""
    shown: Counter[tuple[str, str]] = Counter()
    chosen: list[Scene] = []
    seed = FIRST_SEED
    while len(chosen) < count:
        scene = sample_scene(seed)
        values = {(key.rpartition(".")[2], value) for key, value in attributes_of(scene.truth).items()}
        if any(shown[v] < 2 for v in values) or seed > FIRST_SEED + 400:
            shown.update(values)
            chosen.append(scene)
        seed += 1
    return chosen


def write_samples(folder: Path) -> None:
    """Draws, encodes and describes the sample clips."""
    from framefleet.scenes.encode import ClipFormat, write_clip

    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (scene, (width, height, fps), codec) in enumerate(_plan()):
        form = ClipFormat(
            codec=codec, crf=28, preset="slow", gop=fps * 4, options={"tag": "hvc1"} if codec == "libx265" else {}
        )
        name = f"scene_{number:02d}_{height}p_{'hevc' if codec == 'libx265' else 'h264'}.mp4"
        write_clip(scene, folder / name, width=width, height=height, fps=fps, form=replace(form, audio=number % 6 == 0))
        entries.append(
            {
                "file": name,
                "caption": caption_of(scene.truth),
                "seed": scene.seed,
                "width": width,
                "height": height,
                "fps": fps,
                "duration_s": scene.duration_s,
                "truth": scene.truth.to_dict(),
            }
        )
    text = json.dumps({"clips": entries}, indent=1)
    (folder / "truth.json").write_text(text + "\n", encoding="utf-8")


def _plan() -> Iterator[tuple[Scene, tuple[int, int, int], str]]:
    """Scene, (width, height, fps) and encoder of every sample."""
    for number, scene in enumerate(chosen_scenes()):
        sizes = _RAIN if scene.truth.weather == "rain" else _DRY
        yield scene, sizes[number % len(sizes)], "libx265" if number % 3 == 2 else "libx264"


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else samples_folder())
