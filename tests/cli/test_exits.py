import pytest

from framefleet import errors
from framefleet.cli.exits import MEANINGS, ExitCode, exit_code_for, exit_code_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError, ExitCode.USAGE),
        (errors.MissingLibrary, ExitCode.USAGE),
        (errors.SourceCorrupt, ExitCode.INPUT),
        (errors.DecodeTimeout, ExitCode.INPUT),
        (errors.EngineLost, ExitCode.DEVICE),
        (errors.CaptionError, ExitCode.BUG),
    ],
)
def test_who_is_to_blame_decides(error, code):
    assert exit_code_of(error("what")) is code


@pytest.mark.parametrize(
    ("num_ok", "num_failed", "code"),
    [(3, 0, ExitCode.OK), (0, 0, ExitCode.OK), (3, 1, ExitCode.PARTIAL), (0, 2, ExitCode.INPUT)],
)
def test_of_many_clips(num_ok, num_failed, code):
    assert exit_code_for(num_ok, num_failed) is code


def test_every_code_is_documented():
    assert set(MEANINGS) == set(ExitCode)
