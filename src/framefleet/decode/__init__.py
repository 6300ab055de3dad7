"""How frames come out. The package itself can be called: `framefleet.decode(path, num_frames=16)`."""

from framefleet.callable_package import make_callable

make_callable(__name__, "framefleet.decode.session:decode")
