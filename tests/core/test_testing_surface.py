"""What penstock.testing offers: sorted, documented, and without pytest or Spark until they are needed."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import penstock as ps
from penstock import testing


def test_the_names_are_sorted_importable_and_documented() -> None:
    assert testing.__all__ == sorted(testing.__all__)
    assert dir(testing) == testing.__all__
    assert [name for name in testing.__all__ if not inspect.getdoc(getattr(testing, name))] == []
    with pytest.raises(AttributeError, match="has no attribute 'mock'"):
        _ = testing.mock
    assert ps.testing.run is testing.run


def test_it_loads_without_pytest_and_without_spark() -> None:
    code = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"  # importing it fails
        "import penstock as ps\n"
        "ps.testing.run, ps.testing.ScriptedSource, ps.testing.OperatorHarness, ps.testing.CollectSink\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
