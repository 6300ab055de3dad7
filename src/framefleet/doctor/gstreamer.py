"""GStreamer, which the deepstream backend needs and pip cannot bring."""

from __future__ import annotations

from framefleet.decode.deepstream.gstreamer import find_gstreamer
from framefleet.doctor.finding import Finding
from framefleet.errors import ConfigError, MissingLibrary

_NAME = "GStreamer"


def gstreamer_finding() -> Finding:
    """Which one the deepstream backend would take, or what to install on this distribution."""
    try:
        found = find_gstreamer()
    except MissingLibrary as error:
        what = f"only deepstream needs it; {error.given}" if error.given else "only deepstream needs it"
        return Finding(area="decoding", name=_NAME, level="info", found=what, remedy=error.remedy)
    except ConfigError as error:
        return Finding(
            area="decoding", name=_NAME, level="warning", found=f"{error.what}: {error.given}", remedy=error.remedy
        )
    return Finding(area="decoding", name=_NAME, level="ok", found=f"{found.kind}: {found.place}")
