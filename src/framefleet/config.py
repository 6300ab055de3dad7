"""Settings: one value and one merge. Defaults < file (TOML) < environment (`FRAMEFLEET_*`) < flags.

A part declares its settings as a msgspec struct with a default, a type (with its range) and a docstring for every
field; `resolve` fills it. For the section `caption` and the nested field `frames.num_frames` the names are

    file         [caption.frames]  num_frames = 16
    environment  FRAMEFLEET_CAPTION_FRAMES_NUM_FRAMES=16
    flags        {"frames": {"num_frames": 16}}        (None: the flag was not given)

A name that nobody declared is an error with the nearest right one, never ignored.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_args

import msgspec

from framefleet.errors import ConfigError

PREFIX = "FRAMEFLEET_"
FILE_VARIABLE = "FRAMEFLEET_CONFIG"

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """The settings, and where each one that is not the default came from."""

    value: T
    origins: Mapping[str, str]
    """Dotted field -> `fleet.toml`, `FRAMEFLEET_CAPTION_WINDOW` or `flag`; defaults are absent."""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting, for help texts and the merge."""

    path: tuple[str, ...]
    type: Any
    default: Any
    help: str

    @property
    def name(self) -> str:
        """`frames.num_frames`."""
        return ".".join(self.path)

    def variable(self, section: str) -> str:
        """Its environment variable."""
        return PREFIX + "_".join((section, *self.path)).upper()


@dataclass(frozen=True, slots=True)
class _Given:
    """A value somebody set, before it is typed."""

    value: Any
    origin: str
    is_text: bool = False


def resolve(
    kind: type[T],
    section: str,
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Resolved[T]:
    """The settings of one section from all places.

    `file` defaults to the one named by `FRAMEFLEET_CONFIG`; `environ` to the process's. Raises ConfigError for a file
    that cannot be read, an unknown name, a wrong type or a value out of range, naming the place it came from.
    """
    environ = os.environ if environ is None else environ
    known = {field.path: field for field in fields(kind)}
    given: dict[tuple[str, ...], _Given] = {}
    if path := (file or environ.get(FILE_VARIABLE)):
        given |= _leaves(_section(Path(path), section), known, origin=str(path))
    given |= _from_environment(environ, section, known)
    given |= _leaves(flags or {}, known, origin="flag")
    tree: dict[str, Any] = {}
    for field_path, one in given.items():
        _plant(tree, field_path, _typed(known[field_path], one))
    origins = {known[field_path].name: one.origin for field_path, one in given.items()}
    return Resolved(_build(kind, tree, origins), MappingProxyType(origins))


def fields(kind: type[msgspec.Struct], *, above: tuple[str, ...] = ()) -> Iterator[Field]:
    """Every setting of a struct, those of nested structs included, in declared order."""
    texts = _docstrings(kind)
    for field in msgspec.structs.fields(kind):
        path = (*above, field.name)
        nested = _struct_in(field.type)
        if nested is not None:
            yield from fields(nested, above=path)
            continue
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield Field(path, field.type, default, texts.get(field.name, ""))


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("cannot read the settings file", given=f"{str(path)!r} ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("the settings file is not TOML", given=f"{str(path)!r}: {error}") from error


def unknown(what: str, name: str, allowed: list[str], *, origin: str = "") -> ConfigError:
    """The error for a name that nobody declared, with the nearest right ones."""
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    given = f"{name!r} ({origin})" if origin else repr(name)
    return ConfigError(
        f"no such {what}",
        given=given,
        allowed=", ".join(allowed),
        remedy=f"did you mean {near[0]!r}?" if near else "",
    )


def _section(path: Path, section: str) -> Mapping[str, Any]:
    table = read_file(path).get(section, {})
    if not isinstance(table, dict):
        raise ConfigError("not a table", given=f"{section!r} in {str(path)!r}", allowed=f"[{section}] and settings")
    return table


def _leaves(
    tree: Mapping[str, Any], known: Mapping[tuple[str, ...], Field], *, origin: str, above: tuple[str, ...] = ()
) -> dict[tuple[str, ...], _Given]:
    """The values of a nested mapping by their path; None counts as not given."""
    found: dict[tuple[str, ...], _Given] = {}
    for name, value in tree.items():
        path = (*above, name)
        if path in known:
            if value is not None:
                found[path] = _Given(value, origin)
        elif isinstance(value, Mapping) and any(p[: len(path)] == path for p in known):
            found |= _leaves(value, known, origin=origin, above=path)
        else:
            raise unknown("setting", ".".join(path), [field.name for field in known.values()], origin=origin)
    return found


def _from_environment(
    environ: Mapping[str, str], section: str, known: Mapping[tuple[str, ...], Field]
) -> dict[tuple[str, ...], _Given]:
    by_variable = {field.variable(section): path for path, field in known.items()}
    prefix = f"{PREFIX}{section.upper()}_"
    found = {}
    for name, text in environ.items():
        if not name.startswith(prefix):
            continue
        if name not in by_variable:
            raise unknown("setting", name, sorted(by_variable), origin="environment")
        found[by_variable[name]] = _Given(text, name, is_text=True)
    return found


def _typed(field: Field, given: _Given) -> Any:
    try:
        return _converted(field, given)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"wrong value for {field.name}",
            given=f"{given.value!r} ({given.origin})",
            allowed=f"{error}",
            remedy=field.help.split("\n")[0],
        ) from error


def _converted(field: Field, given: _Given) -> Any:
    try:
        return msgspec.convert(given.value, field.type, strict=not given.is_text)
    except msgspec.ValidationError:
        if not (given.is_text and given.value.lstrip()[:1] in ("{", "[")):
            raise
    return msgspec.json.decode(given.value.encode(), type=field.type)


def _build(kind: type[T], tree: dict[str, Any], origins: Mapping[str, str]) -> T:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:  # a rule of the struct as a whole, from its __post_init__
        raise ConfigError("settings do not fit together", given=f"{dict(origins)}", allowed=str(error)) from error


def _plant(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *above, name = path
    for step in above:
        tree = tree.setdefault(step, {})
    tree[name] = value


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, msgspec.Struct) else None
    return next((found for part in get_args(annotation) if (found := _struct_in(part))), None)


def _docstrings(kind: type) -> dict[str, str]:
    """Field -> the string that stands right under it in the source, base classes first."""
    texts: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if not issubclass(cls, msgspec.Struct) or cls is msgspec.Struct:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and _is_text(below):
                texts[above.target.id] = inspect.cleandoc(below.value.value)  # type: ignore[attr-defined]
    return texts


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
