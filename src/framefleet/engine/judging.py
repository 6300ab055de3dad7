"""What an answer is worth: parse, validate, see cuts, silence and loops, and say whether one more try can help."""

from __future__ import annotations

import contextlib
import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from framefleet.engine.captioner import Status
from framefleet.engine.prompts import repair_instruction
from framefleet.engine.question import Answer, Question, Turn
from framefleet.errors import ConfigError

MIN_LOOP_WORDS = 16
"""Shorter texts are never called loops."""
MIN_LOOP_ROUNDS = 4
MIN_LOOP_SHARE = 0.5
"""The repeated tail must be at least this share of the text."""
_FENCE = re.compile(r"```[a-zA-Z]*\s*\n?(.*?)```", re.DOTALL)


class Verdict(NamedTuple):
    """Whether the answer may be stored as it is, and its parsed form."""

    status: Status
    message: str = ""
    json: str = ""
    problem: str = ""
    """What the model can be told to mend (schema failures only)."""


def judge(answer: Answer, question: Question) -> Verdict:
    """The verdict on an answer. Pure."""
    if not answer.text.strip():
        return Verdict("rejected", _silence(answer), problem="it is empty")
    if question.schema is not None:
        return _judge_json(answer, question.schema, question.generation.max_tokens)
    if is_looping(answer.text):
        return Verdict("rejected", "the answer repeats itself; try: another prompt, or repetition_penalty 1.05")
    if answer.finish_reason == "length":
        return Verdict("truncated", f"cut at max_tokens={question.generation.max_tokens}")
    return Verdict("ok")


def another_try(question: Question, answer: Answer, verdict: Verdict) -> Question | None:
    """The question to put once more, or None where that cannot help.

    JSON that was cut gets twice the tokens; JSON that is wrong goes back with the reason. An empty or looping answer
    is asked again only when tokens are drawn at random: a greedy engine would say the same.
    """
    if verdict.status != "rejected":
        return None
    generation = question.generation
    if question.schema is None:
        return question if generation.temperature > 0 and generation.seed is None else None
    if answer.finish_reason == "length":
        longer = msgspec.structs.replace(generation, max_tokens=2 * generation.max_tokens)
        return msgspec.structs.replace(question, generation=longer)
    turns = (*question.turns, Turn("assistant", answer.text), Turn("user", repair_instruction(verdict.problem)))
    return msgspec.structs.replace(question, turns=turns)


def check_schema(schema: Any) -> dict[str, Any]:
    """The schema itself, checked. Raises ConfigError if it is no JSON schema."""
    import jsonschema

    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except (jsonschema.SchemaError, TypeError, AttributeError) as error:
        what = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
        raise ConfigError("not a JSON schema", given=what, remedy="see https://json-schema.org") from error
    if not isinstance(schema, dict):
        raise ConfigError("not a JSON schema", given=type(schema).__name__, allowed="a JSON object")
    return schema


def parse_json(text: str) -> Any:
    """The JSON value in a model's answer: alone, in a code fence, or the first object or array in the text.

    Raises ValueError when there is none.
    """
    candidates = [text.strip(), *(m.strip() for m in _FENCE.findall(text))]
    for candidate in candidates:
        with contextlib.suppress(ValueError):
            return _strict(candidate)
    for start in sorted(at for at in (text.find("{"), text.find("[")) if at >= 0):
        with contextlib.suppress(ValueError):
            return _DECODER.raw_decode(text, start)[0]
    raise ValueError("it holds no JSON object")


def is_looping(text: str) -> bool:
    """Whether the text ends in one run of words said over and over."""
    words = text.split()
    if len(words) < MIN_LOOP_WORDS:
        return False
    return any(
        (tail := _periodic_tail(words, period)) >= period * MIN_LOOP_ROUNDS and tail >= MIN_LOOP_SHARE * len(words)
        for period in range(1, len(words) // MIN_LOOP_ROUNDS + 1)
    )


def clean_text(text: str) -> str:
    """Without what no store takes: lone surrogates and NULs become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "�")


def _judge_json(answer: Answer, schema: dict[str, Any], max_tokens: int) -> Verdict:
    try:
        value = parse_json(answer.text)
    except (ValueError, RecursionError) as error:
        if answer.finish_reason == "length":
            return Verdict(
                "rejected", f"the JSON was cut at max_tokens={max_tokens}; try: more tokens", problem="it is cut"
            )
        return Verdict("rejected", f"the answer is not JSON: {error}", problem=f"not JSON: {error}")
    if problem := _first_problem(value, json.dumps(schema, sort_keys=True)):
        return Verdict("rejected", f"the JSON does not meet the schema: {problem}", problem=problem)
    return Verdict("ok", json=json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


@lru_cache(maxsize=32)
def _validator(schema_text: str) -> Any:
    import jsonschema
    from referencing import Registry

    schema = json.loads(schema_text)
    return jsonschema.validators.validator_for(schema)(schema, registry=Registry())  # which fetches nothing


def _first_problem(value: Any, schema_text: str) -> str:
    import jsonschema
    from referencing.exceptions import Unresolvable

    try:
        error = jsonschema.exceptions.best_match(_validator(schema_text).iter_errors(value))
    except Unresolvable as unresolvable:
        raise ConfigError(
            "the schema refers to what it does not hold", given=str(unresolvable), allowed="references into itself"
        ) from unresolvable
    return f"{error.message} (at {error.json_path})"[:500] if error else ""


def _silence(answer: Answer) -> str:
    if answer.reasoning.strip():
        return "the answer is empty, all text came as reasoning; try: more max_tokens, or thinking turned off"
    return "the answer is empty"


def _periodic_tail(words: list[str], period: int) -> int:
    """How many words at the end follow the rule word[i] == word[i + period], the last round included."""
    length = period
    while length < len(words) and words[-length - 1] == words[-length - 1 + period]:
        length += 1
    return length if length > period else 0


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _strict(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)
