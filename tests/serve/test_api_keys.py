"""Keys are known by their sums only, and have limits of their own."""

import contextlib
import hashlib

import pytest

from framefleet.errors import ConfigError, EngineBusy
from framefleet.serve.api_keys import ANYBODY, ApiKeys, read_keys


def sum_of(key):
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[keys.team]\nsha256 = "{sum_of("s3cret")}"\nmax_concurrent = 2\npriority = "batch"\n'
        f'[keys.ops]\nsha256 = "{sum_of("r00t")}"\nis_admin = true\n'
    )
    return read_keys(path)


def test_a_key_is_known_by_its_sum(keys):
    assert keys.who("Bearer s3cret").name == "team"
    assert keys.who("bearer r00t").is_admin
    for wrong in ("", "s3cret", "Basic s3cret", "Bearer S3cret", "Bearer ", f"Bearer {sum_of('s3cret')}"):
        assert keys.who(wrong) is None


def test_without_keys_anybody_may_ask():
    assert ApiKeys().who("") is ANYBODY
    assert not ApiKeys().are_required


def test_each_key_has_its_own_limit(keys):
    team, ops = keys.who("Bearer s3cret"), keys.who("Bearer r00t")
    with contextlib.ExitStack() as running:
        for key in (team, team, ops, ops, ops):
            running.enter_context(keys.running(key))
        with pytest.raises(EngineBusy, match="allowed: 2"):
            running.enter_context(keys.running(team))
    with keys.running(team):
        pass


@pytest.mark.parametrize("text", ['[keys.a]\nsha256 = "short"', "[keys.a]", "x = 1", '[keys.a]\nkey = "plain"', "["])
def test_a_wrong_file_is_refused(tmp_path, text):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_keys(path)
