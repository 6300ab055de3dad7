"""Finding clips by what is in them. The package itself can be called: `framefleet.search(store, "red truck")`."""

from framefleet.callable_package import make_callable

make_callable(__name__, "framefleet.search.searcher:search")
