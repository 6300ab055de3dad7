"""Names to implementations, imported on first use: built-ins by `"module:attribute"`, third parties by entry points.

Built-ins and plugins go the same road, so a plugin can do whatever a built-in can.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from framefleet.errors import ConfigError


class Registry:
    """One kind of named thing (decode backends, engines, sinks ...).

    `group` is the entry-point group third parties use, for example `framefleet.decode_backends`.
    """

    def __init__(self, kind: str, group: str, built_in: dict[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._built_in = dict(built_in)

    def names(self) -> list[str]:
        """Every known name: built-ins in their declared order, then plugins by name."""
        plugins = sorted(e.name for e in entry_points(group=self.group) if e.name not in self._built_in)
        return [*self._built_in, *plugins]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def load(self, name: str) -> Callable[..., Any]:
        """The factory registered under `name`. Raises ConfigError with the nearest names if there is none."""
        if target := self._built_in.get(name):
            module, _, attribute = target.partition(":")
            factory: Callable[..., Any] = getattr(import_module(module), attribute)
            return factory
        for entry in entry_points(group=self.group, name=name):
            loaded: Callable[..., Any] = entry.load()
            return loaded
        near = difflib.get_close_matches(name, self.names(), n=1)
        raise ConfigError(
            f"no such {self.kind}",
            given=repr(name),
            allowed=", ".join(self.names()),
            remedy=f"did you mean {near[0]!r}?" if near else "",
        )
