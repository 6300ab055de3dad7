"""Synthetic caption records from a grammar, and queries in its words."""

import random
from collections.abc import Iterator

from framefleet.engine.captioner import CaptionRecord

COLOURS = ["red", "blue", "white", "black", "silver", "yellow", "green", "grey"]
VEHICLES = ["truck", "car", "bus", "van", "motorcycle", "taxi", "ambulance", "tractor"]
ACTS = ["brakes", "turns left", "turns right", "overtakes", "merges", "stops", "reverses", "parks", "swerves", "waits"]
LIGHT = [
    "in clear daylight",
    "at dusk",
    "at night",
    "in heavy rain",
    "in fog",
    "on a wet road at night",
    "under falling snow",
]
ROADS = [
    "a multi-lane urban road",
    "a rural road",
    "a motorway",
    "a roundabout",
    "a narrow street",
    "a bridge",
    "a tunnel",
]
PEOPLE = (
    "A pedestrian crosses from the left.", "No pedestrians are visible.", "A cyclist rides ahead.",
    "A child waits at the kerb.", "Two pedestrians wait at the crossing.", "A worker in an orange vest signals.",
)  # fmt: skip
SIGNALS = (
    "The traffic light changes from green to red", "The traffic light turns green", "There is no traffic light",
    "A stop sign stands on the right", "Road works narrow the lane",
)  # fmt: skip
PLACES = 20_000
"""Numbers of places in captions: a long tail of rare words, as names and plates make in real ones."""


def caption(rng: random.Random) -> str:
    """Some 45 words."""
    pick = rng.choice
    return (
        f"The ego vehicle travels along {pick(ROADS)} {pick(LIGHT)}. "
        f"A {pick(COLOURS)} {pick(VEHICLES)} ahead {pick(ACTS)} "
        f"while a {pick(COLOURS)} {pick(VEHICLES)} {pick(ACTS)} near exit {rng.randrange(PLACES)}. {pick(PEOPLE)} "
        f"{pick(SIGNALS)}; the ego vehicle {pick(ACTS)}."
    )


def records(num_rows: int, seed: int) -> Iterator[CaptionRecord]:
    """`num_rows` records: thirty windows a clip, one in two hundred failed."""
    rng = random.Random(seed)
    for number in range(num_rows):
        clip, window = divmod(number, 30)
        failed = rng.random() < 0.005
        yield CaptionRecord(
            digest=f"{rng.getrandbits(128):032x}",
            clip=f"/fleet/car {clip % 40:02d}/2026-09-{clip % 30 + 1:02d}/drive_{clip:07d}.mp4",
            content_digest=f"{clip:032x}",
            start_s=30.0 * window,
            end_s=30.0 * window + 30.0,
            prompt="Describe what the road users do.",
            text="" if failed else caption(rng),
            status="failed" if failed else "ok",
            reason="SourceCorrupt" if failed else "",
            model="Qwen/Qwen3-VL-8B-Instruct",
            engine="openai_http",
            backend="pynvvideocodec",
            num_frames=16,
            frame_pts_s=[30.0 * window + 2.0 * frame for frame in range(16)],
            width=640,
            height=352,
            prompt_tokens=1900 + number % 97,
            completion_tokens=60 + number % 31,
            seconds={"fetch": 0.01, "decode": 0.2, "queue": 1.5, "generate": 2.25},
            versions={"framefleet": "0.1.0", "vllm": "0.33.0", "PyNvVideoCodec": "2.0.4"},
            created_at=f"2026-09-30T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000+00:00",
        )


def queries(num_queries: int, seed: int) -> list[str]:
    """Distinct questions of one to eight words; every eighth with a phrase, every eighth with a rare number."""
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < num_queries:
        pick = rng.choice
        forms = [
            f"{pick(COLOURS)} {pick(VEHICLES)}, {pick(LIGHT)}",
            f"{pick(VEHICLES)} {pick(ACTS)} on {pick(ROADS)}",
            f"{pick(PEOPLE)}",
            f"{pick(COLOURS)} {pick(VEHICLES)} {pick(ACTS)} {pick(LIGHT)}",
            f'"{pick(COLOURS)} {pick(VEHICLES)}" {pick(LIGHT)}',
            f"exit {rng.randrange(PLACES)}",
            f"{pick(SIGNALS)} {pick(LIGHT)}",
            f"{pick(VEHICLES)}",
        ]
        found[pick(forms)] = None
    return list(found)
