"""Packages that can be called: `framefleet.decode(path, num_frames=16)`.

A submodule import binds `framefleet.decode` to the package, so a function of that name could not live beside it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Calling the imported `package` calls `function` (`"module:name"`, imported then)."""
    module, _, name = function.partition(":")

    class CallablePackage(ModuleType):
        def __call__(self, *positional: Any, **named: Any) -> Any:
            return getattr(import_module(module), name)(*positional, **named)

    sys.modules[package].__class__ = CallablePackage
