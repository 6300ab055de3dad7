"""What a caller of `framefleet.decode` is told."""

import pytest

import framefleet
from framefleet.errors import ConfigError


@pytest.mark.parametrize(("wrong", "near"), [("max_duration", "max_duration_s"), ("num_frame", "num_frames")])
def test_an_option_that_there_is_not_is_told_with_the_nearest(corpus, wrong, near):
    with pytest.raises(ConfigError, match=f"no such decode option; got '{wrong}'.*did you mean '{near}'"):
        framefleet.decode(corpus / "base.mp4", **{wrong: 4})
