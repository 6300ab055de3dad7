import pytest
from tiny_models import FAMILIES, make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with one tiny checkpoint per family, named for it."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make_model(family, folder / family)
    return folder
