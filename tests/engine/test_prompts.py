import json

import pytest

from framefleet.engine.prompts import PROMPTS, prompt_text, schema_instruction


@pytest.mark.parametrize("name", PROMPTS)
def test_every_name_gives_its_text(name):
    assert prompt_text(name) == PROMPTS[name].text
    assert PROMPTS[name].about


@pytest.mark.parametrize("text", ["AV", "av ", "", "Describe the av.", "generl"])
def test_anything_else_is_the_prompt_itself(text):
    assert prompt_text(text) == text


def test_the_instruction_holds_the_schema():
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    assert json.loads(schema_instruction(schema).split("schema: ")[1]) == schema
