"""Prompts by name. A name is matched exactly; anything else is the prompt itself."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Prompt(NamedTuple):
    """A prompt and what it is for."""

    text: str
    about: str


PROMPTS: dict[str, Prompt] = {
    "av": Prompt(
        "Describe this driving scene from the ego vehicle's view: the road, the light and weather, the other road users"
        " and what they do, traffic lights and signs, and what the ego vehicle does over time.",
        "driving footage from a front camera",
    ),
    "general": Prompt(
        "Describe this video in detail: the setting, the people and objects, what happens and in which order.",
        "any footage",
    ),
    "short": Prompt("Describe this video in one sentence.", "one sentence, for lists and titles"),
    "security": Prompt(
        "Describe this surveillance footage: the place, each person and vehicle and how to tell them apart, what they"
        " do and when, and anything unusual. Say only what can be seen.",
        "fixed cameras",
    ),
    "robot": Prompt(
        "Describe this robot recording: the robot and its workspace, the objects on it, each action in order with what"
        " is grasped, moved or placed where, and whether the task succeeds.",
        "manipulation and navigation recordings",
    ),
    "media": Prompt(
        "Describe this shot for a media archive: subject and action, setting, shot size, camera movement, lighting,"
        " on-screen text and mood.",
        "films, news, sport",
    ),
    "traffic": Prompt(
        "Describe the traffic in this video: the kind of road or junction, how dense the traffic is and how it moves,"
        " and every near miss, violation or accident.",
        "roadside and junction cameras",
    ),
}


def prompt_text(name_or_text: str) -> str:
    """The prompt of that name, or the text itself when no prompt is called so (names match exactly, case included)."""
    named = PROMPTS.get(name_or_text)
    return named.text if named else name_or_text


def schema_instruction(schema: dict[str, Any]) -> str:
    """The sentence that asks for JSON, with the schema as compact text."""
    compact = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Answer with one JSON value only, no other text, that meets this JSON schema: {compact}"


def repair_instruction(problem: str) -> str:
    """What the model is told about an answer that fails its schema."""
    return f"That answer does not meet the schema: {problem}. Answer again with the corrected JSON value only."
