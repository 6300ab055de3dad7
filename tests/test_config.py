from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from framefleet.caption.settings import CaptionSettings
from framefleet.config import fields, resolve
from framefleet.errors import ConfigError
from framefleet.units import Span


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Below."""

    depth_m: Annotated[float, msgspec.Meta(ge=0)] = 1.5
    """How deep, in metres."""
    size: tuple[int, int] | None = None
    """Width and height."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Above."""

    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    """How many.

    And why.
    """
    name: str | None = None
    """What it is called."""
    quick: bool = False
    """Hurry."""
    extra: dict[str, Any] = {}
    """Anything."""
    span: Span | None = None
    """A stretch."""
    inner: Inner = Inner()
    """More."""


def made(**how: Any) -> Settings:
    return resolve(Settings, "part", **{"environ": {}, **how}).value


def test_defaults_need_nothing():
    assert made() == Settings()
    assert resolve(Settings, "part", environ={}).origins == {}


def test_file_then_environment_then_flags(tmp_path: Path):
    file = tmp_path / "fleet.toml"
    file.write_text('[part]\ncount = 4\nname = "file"\nquick = true\n[part.inner]\ndepth_m = 2\n[other]\nx = 1\n')
    environ = {"FRAMEFLEET_PART_NAME": "env", "FRAMEFLEET_PART_COUNT": "5", "FRAMEFLEET_PART_INNER_SIZE": "[3, 4]"}
    flags = {"count": 6, "name": None, "inner": {"depth_m": None}}
    resolved = resolve(Settings, "part", file=file, environ=environ, flags=flags)
    assert resolved.value == Settings(count=6, name="env", quick=True, inner=Inner(depth_m=2.0, size=(3, 4)))
    assert resolved.origins == {
        "count": "flag",
        "name": "FRAMEFLEET_PART_NAME",
        "quick": str(file),
        "inner.depth_m": str(file),
        "inner.size": "FRAMEFLEET_PART_INNER_SIZE",
    }


def test_the_environment_may_name_the_file(tmp_path: Path):
    (tmp_path / "f.toml").write_text("[part]\ncount = 9\n")
    assert made(environ={"FRAMEFLEET_CONFIG": str(tmp_path / "f.toml")}).count == 9
    (tmp_path / "other.toml").write_text("[part]\ncount = 8\n")
    assert made(file=tmp_path / "other.toml", environ={"FRAMEFLEET_CONFIG": str(tmp_path / "f.toml")}).count == 8


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("QUICK", "true", {"quick": True}),
        ("QUICK", "0", {"quick": False}),
        ("NAME", "12", {"name": "12"}),
        ("NAME", "[not json", {"name": "[not json"}),
        ("EXTRA", '{"a": [1]}', {"extra": {"a": [1]}}),
        ("INNER_DEPTH_M", "2", {"inner": Inner(depth_m=2.0)}),
    ],
)
def test_text_from_the_environment_is_typed(name: str, text: str, expected: dict[str, Any]):
    assert made(environ={f"FRAMEFLEET_PART_{name}": text, "FRAMEFLEET_REQUIRE_GPU": "1"}) == Settings(**expected)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"flags": {"cuont": 3}}, r"no such setting.*'cuont' \(flag\).*did you mean 'count'"),
        ({"flags": {"inner": {"dept_m": 3}}}, r"'inner\.dept_m'.*did you mean 'inner\.depth_m'"),
        ({"flags": {"count": {"x": 1}}}, r"wrong value for count.*flag.*How many"),
        ({"environ": {"FRAMEFLEET_PART_CUONT": "3"}}, r"environment.*did you mean 'FRAMEFLEET_PART_COUNT'"),
        ({"environ": {"FRAMEFLEET_PART_COUNT": "three"}}, r"wrong value for count.*'three' \(FRAMEFLEET_PART_COUNT\)"),
        ({"environ": {"FRAMEFLEET_PART_COUNT": "10"}}, r"wrong value for count.*<= 9"),
        ({"environ": {"FRAMEFLEET_PART_INNER_SIZE": "[1]"}}, r"wrong value for inner\.size"),
        ({"flags": {"inner": {"depth_m": -1.0}}}, r"inner\.depth_m.*>= 0"),
        ({"flags": {"quick": "yes"}}, r"wrong value for quick"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_a_remedy(how: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        made(**how)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[part]\ncuont = 1\n", r"'cuont' \(.*f\.toml\)"),
        (b"[part]\ncount = '4'\n", r"wrong value for count"),  # a file has types: text is no number
        (b"part = 1\n", "not a table"),
        (b"[part\n", "not TOML"),
        (b"\xff\xfe", "not TOML"),
    ],
)
def test_wrong_files(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "f.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        made(file=tmp_path / "f.toml")
    with pytest.raises(ConfigError, match="cannot read the settings file"):
        made(file=tmp_path / "missing.toml")


def test_values_that_are_typed_already_pass():
    assert made(flags={"span": Span(0, 5), "inner": {"size": (1, 2)}}) == Settings(
        span=Span(0, 5), inner=Inner(size=(1, 2))
    )


def test_fields_tell_name_variable_default_and_help():
    found = {field.name: field for field in fields(Settings)}
    assert list(found) == ["count", "name", "quick", "extra", "span", "inner.depth_m", "inner.size"]
    assert found["count"].help == "How many.\n\nAnd why."
    assert found["inner.depth_m"].help == "How deep, in metres."
    assert found["inner.depth_m"].variable("part") == "FRAMEFLEET_PART_INNER_DEPTH_M"
    assert found["extra"].default == {}
    assert found["count"].default == 3


def test_every_caption_setting_has_a_sentence():
    assert [field.name for field in fields(CaptionSettings) if not field.help] == []


def test_caption_settings_from_a_file(tmp_path: Path):
    (tmp_path / "f.toml").write_text(
        '[caption]\nwindow = "30s"\n[caption.frames]\nnum_frames = 8\n[caption.generation]\nseed = 1\n'
    )
    settings = resolve(CaptionSettings, "caption", file=tmp_path / "f.toml", environ={}, flags={"prompt": "av"}).value
    assert (settings.window, settings.prompt, settings.generation.seed) == ("30s", "av", 1)
    assert settings.frames is not None
    assert settings.frames.num_frames == 8
