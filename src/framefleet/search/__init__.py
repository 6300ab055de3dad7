"""Finding clips by what is in them. The package itself can be called: `framefleet.search(store, "red truck")`.

(A submodule import binds `framefleet.search` to this package, so a function of that name could not live beside it.)
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefleet.search.hit import Hit


class _CallablePackage(ModuleType):
    def __call__(self, store: Any, query: str, **asked: Any) -> list[Hit]:
        """See `framefleet.search.searcher.search`; `store` may also be the path of one."""
        from framefleet.search.searcher import search
        from framefleet.store.sink import open_store

        if hasattr(store, "records"):
            return search(store, query, **asked)
        with open_store(store) as opened:
            return search(opened, query, **asked)


sys.modules[__name__].__class__ = _CallablePackage
