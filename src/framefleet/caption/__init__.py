"""Runs over many clips. The package itself can be called: `framefleet.caption("clips/", "captions.lance")`."""

from framefleet.callable_package import make_callable

make_callable(__name__, "framefleet.caption.job:caption")
