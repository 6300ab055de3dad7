"""What holds for every test: no skip passes silently where everything is there, and GPU tests know their place.

FRAMEFLEET_REQUIRE_ALL=1 (set by CI, which installs everything) turns a skip into a failure.
FRAMEFLEET_REQUIRE_GPU=1 (set by `make test-gpu`) does so for tests marked `gpu`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # a shared machine is no stopwatch
settings.load_profile("no clock")

HAS_GPU = Path("/proc/driver/nvidia/gpus").exists()


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of damaged and odd clips; their truth is in truth.json beside it."""
    return Path(__file__).parent / "corpus" / "files"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    variable = "FRAMEFLEET_REQUIRE_GPU" if item.get_closest_marker("gpu") else "FRAMEFLEET_REQUIRE_ALL"
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(variable) == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped although {variable}=1: {report.longrepr[2]}"
    return report
