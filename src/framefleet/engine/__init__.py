"""Engines: frames (or a clip) in, words out. Built-ins and plugins (`framefleet.engines`) go the same road.

async with open_engine("embedded") as engine:
    record = await engine.caption(request, frames)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framefleet.registry import Registry

if TYPE_CHECKING:
    from framefleet.engine.asking import AskingCaptioner

ENGINES = Registry(
    "engine",
    "framefleet.engines",
    {
        "embedded": "framefleet.engine.embedded.engine:open_embedded",
        "openai_http": "framefleet.engine.openai_http:open_openai_http",
        "fleet": "framefleet.serve.fleet_engine:open_fleet",
        "fake": "framefleet.engine.fake:open_fake",
    },
)


def open_engine(name: str, **settings: Any) -> AskingCaptioner:
    """The engine of that name, to be entered with `async with`. Nothing is started before that.

    `settings` are the fields of the engine's settings struct; None means not given. Raises ConfigError for an unknown
    engine or setting and for a wrong value, MissingLibrary when the engine's library is not installed.
    """
    factory: Callable[..., AskingCaptioner] = ENGINES.load(name)
    return factory(**settings)
