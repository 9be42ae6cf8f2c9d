"""Whatever was raised, said as one of our errors: whose fault it is, and whether a retry can help."""

import errno

import pytest

from penstock.errors import (
    EngineDied,
    EngineFailed,
    InternalError,
    LayerMissing,
    PenstockError,
    StorageFailed,
    UserFunctionError,
)
from penstock.job.failures import to_penstock_error


class Py4JNetworkError(Exception):
    """As py4j calls it."""


class PythonException(Exception):
    """As PySpark calls it."""


class SparkError(Exception):
    """Something of PySpark's."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"

TRACE = """
  File "/usr/lib/site-packages/pyspark/worker.py", line 9, in main
  File "/home/u/shop.py", line 12, in add_tax
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("raised", "kind", "retry", "words"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), EngineDied, False, "new process"),
        (SparkError("Cannot call methods on a stopped SparkContext"), EngineDied, False, "new process"),
        (BrokenPipeError("a sink's own connection"), InternalError, False, "BrokenPipeError"),
        (OSError(errno.ENOSPC, "No space left on device"), StorageFailed, True, "free space"),
        (SparkError("java.io.IOException: No space left on device"), StorageFailed, True, "free space"),
        (SparkError("Checkpoint block rdd_7_0 not found!"), LayerMissing, True, "state"),
        (PythonException(TRACE), UserFunctionError, False, "shop.py:12 in add_tax: ZeroDivisionError"),
        (SparkError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"), UserFunctionError, False, "DIVIDE_BY_ZERO"),
        (SparkError("Job aborted: executor lost"), EngineFailed, True, "executor lost"),
        (KeyError("x"), InternalError, False, "please report"),
    ],
)
def test_each_failure_is_told_as_what_it_is(
    raised: Exception, kind: type[PenstockError], retry: bool, words: str
) -> None:
    told = to_penstock_error(raised)
    assert type(told) is kind
    assert told.retry is retry
    assert words in str(told)


def test_ours_stays_as_it_is() -> None:
    error = StorageFailed("full")
    assert to_penstock_error(error) is error
