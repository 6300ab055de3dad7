"""How frames come out. The package itself can be called: `framefleet.decode(path, num_frames=16)`.

(A submodule import binds `framefleet.decode` to this package, so a function of that name could not live beside it.)
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefleet.decode.decoder import DecodedFrames


class _CallablePackage(ModuleType):
    def __call__(self, source: Any, options: Any = None, **asked: Any) -> DecodedFrames:
        """See `framefleet.decode.session.decode`."""
        from framefleet.decode.session import decode

        return decode(source, options, **asked)


sys.modules[__name__].__class__ = _CallablePackage
