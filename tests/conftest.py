"""Settings for all tests: Hypothesis tries the same examples every time unless asked to explore."""

import os
import warnings

import pytest
from hypothesis import settings

from polyaforest.cli import run

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture
def cli(capfd, monkeypatch):
    """Run the program within this process, for its exit code, stdout and stderr."""

    def call(*args):
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # `run` sets another
        with pytest.raises(SystemExit) as left:
            run([str(arg) for arg in args])
        return left.value.code, *capfd.readouterr()

    return call
