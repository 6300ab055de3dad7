"""When `framefleet caption --model` starts a fleet of its own, and with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from framefleet.cli.render import note

if TYPE_CHECKING:
    from framefleet.caption.settings import CaptionSettings

_BUNDLED = "dashcam_tiny"


def with_fleet(settings: CaptionSettings, config: Path | None) -> CaptionSettings:
    """The settings, with the engine `fleet` where none is chosen and the model is better served by one: by vLLM, or by
    a replica on each of several GPUs. Raises ConfigError for a `[fleet]` section that is no good."""
    if settings.engine == "fleet":
        return _configured(settings, config)
    is_chosen = settings.engine or settings.endpoint or settings.engine_options
    if is_chosen or settings.model in (None, _BUNDLED):
        return settings
    from framefleet.serve.fleet_engine import suits

    if not suits(settings.model, str(config or "")):
        return settings
    note("the model is served by a fleet of its own, which takes a while to start (--engine embedded: without one)")
    return _configured(msgspec.structs.replace(settings, engine="fleet"), config)


def _configured(settings: CaptionSettings, config: Path | None) -> CaptionSettings:
    options = {"config": str(config)} if config else {}
    return msgspec.structs.replace(settings, engine_options=options | settings.engine_options)
