"""Loading GStreamer into this process, in the order that DeepStream's plugins need. Only the host does it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from framefleet.errors import DeviceError

LIBRARIES = (
    "libglib-2.0.so.0", "libgobject-2.0.so.0", "libgmodule-2.0.so.0", "libgio-2.0.so.0", "libgirepository-1.0.so.1",
    "libgstreamer-1.0.so.0", "libgstbase-1.0.so.0", "libgstvideo-1.0.so.0", "libgstallocators-1.0.so.0",
    "libgstrtp-1.0.so.0", "libgstapp-1.0.so.0", "libv4lconvert.so.0",
)  # fmt: skip
"""Of a bundle, in loading order: what comes later, the wheel's plugins included, finds these by name."""


def load_gstreamer(bundle: str, python_path: Sequence[str] = ()) -> None:
    """Make `import gi` and GStreamer's plugins work, from the bundle in that folder or from the system (empty).

    Raises DeviceError naming the library that does not load.
    """
    sys.path.extend(python_path)
    os.environ["GST_REGISTRY_FORK"] = "no"  # a forked scanner would not have what is loaded here
    if not bundle:
        return
    folder = Path(bundle).resolve()
    sys.path.insert(0, str(folder / "py"))
    os.environ["GI_TYPELIB_PATH"] = str(folder / "typelib")
    os.environ["GST_PLUGIN_SYSTEM_PATH_1_0"] = str(folder / "plugins")
    for name in LIBRARIES:
        try:
            ctypes.CDLL(str(folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DeviceError(
                "the GStreamer bundle does not load", given=str(error), remedy="framefleet deepstream bundle"
            ) from error
