"""Whatever was raised, said as one of our errors: whose fault it is, and whether a retry can help."""

import errno
import inspect
import json

import pytest

import penstock as ps
from penstock.errors import (
    DecodeError,
    EngineDied,
    EngineFailed,
    InternalError,
    LayerMissing,
    PenstockError,
    SourceChanged,
    SourceUnavailable,
    StorageFailed,
    UserFunctionError,
)
from penstock.formats.text import DECODE_MARK
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
NO_MODULE = """
  File "/usr/lib/site-packages/pyspark/serializers.py", line 9, in loads
ModuleNotFoundError: No module named 'tax'
"""


JAVA = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted: lost
\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)
Caused by: java.io.IOException: Mkdirs failed
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:1)
"""
READ = "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.{}] {}\n\tat a.B\n"
NO_HINT = "Encountered error while reading file file:///in/{}. SQLSTATE: KD001"
CUT_SHORT = READ.format("NO_HINT", NO_HINT.format("a.json.gz")) + "Caused by: java.io.EOFException: Unexpected end\n"
BROKEN_DISK = READ.format("NO_HINT", NO_HINT.format("a.json")) + "Caused by: java.io.IOException: Input/output error\n"
UNLIKE = READ.format("NO_HINT", NO_HINT.format("a.parquet")) + "Caused by: java.lang.ClassCastException: {}\n"
UNREADABLE = READ.format("FILE_NOT_EXIST", "Encountered error while reading file file:///in/a%20b.json. File does not")
UNREADABLE += "Caused by: java.io.FileNotFoundException: /in/a b.json (Permission denied)\n"
VANISHED = READ.format("FILE_NOT_EXIST", "Encountered error while reading file file:///in/a.json. File does not exist.")


@pytest.mark.parametrize(
    ("raised", "kind", "retry", "words"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), EngineDied, False, "new process"),
        (SparkError("Cannot call methods on a stopped SparkContext"), EngineDied, False, "new process"),
        (BrokenPipeError("a sink's own connection"), InternalError, False, "BrokenPipeError"),
        (OSError(errno.ENOSPC, "No space left on device"), StorageFailed, True, "Free space"),
        (SparkError("java.io.IOException: No space left on device"), StorageFailed, True, "Free space"),
        (SparkError("Checkpoint block rdd_7_0 not found!"), LayerMissing, True, "state"),
        (PythonException(TRACE), UserFunctionError, False, "shop.py:12 in add_tax: ZeroDivisionError"),
        (PythonException(NO_MODULE), UserFunctionError, False, "'tax'. If workers lack tax, install it there, or have"),
        (SparkError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"), UserFunctionError, False, "DIVIDE_BY_ZERO"),
        (SparkError("Job aborted: executor lost"), EngineFailed, True, "executor lost"),
        (SparkError(JAVA), EngineFailed, True, "Job aborted: lost (caused by java.io.IOException: Mkdirs failed)"),
        (SparkError(UNREADABLE), SourceUnavailable, True, "'/in/a b.json' cannot be read (Permission denied)"),
        (SparkError(BROKEN_DISK), SourceUnavailable, True, "'/in/a.json' cannot be read (java.io.IOException: Input/"),
        (SparkError(CUT_SHORT), DecodeError, False, "'/in/a.json.gz' is damaged or was not written to its end"),
        (
            SparkError(UNLIKE.format("optional int64 id is not a group")),
            DecodeError,
            False,
            "int64 id is not a group. The",
        ),
        (SparkError(VANISHED), SourceChanged, False, "vanished"),
        (KeyError("x"), InternalError, False, "Please report"),
    ],
)
def test_each_failure_is_told_as_what_it_is(
    raised: Exception, kind: type[PenstockError], retry: bool, words: str
) -> None:
    told = to_penstock_error(raised)
    assert type(told) is kind
    assert told.retry is retry
    assert words in str(told)


MISMATCH = READ.format(
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "Encountered error while reading file file:///in/a.parquet. Data type mismatches when reading Parquet column [id]. "
    "Expected Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001",
)


def undecoded(**details: str) -> SparkError:
    """A failure of a Spark job at a row that cannot be decoded."""
    return SparkError(f"Job aborted: {DECODE_MARK}{json.dumps(details)} SQLSTATE: P0001")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            undecoded(place="orders/3, offset 17", reason="field 'amount' is not of its declared type bigint: {}"),
            "orders/3, offset 17: field 'amount' is not of its declared type bigint: {}. To keep such rows aside "
            "instead of failing, read them as text and use parse_json('value', schema, on_error='split').",
        ),
        (
            undecoded(place="/in/a.csv", reason="malformed CSV, or a field that is not of its declared type (…): 7,x"),
            "/in/a.csv: malformed CSV, or a field that is not of its declared type (…): 7,x. Correct schema=, options= "
            "(sep, quote, header, timestampFormat, …) or the line in its file, and start again. Or, to keep such lines "
            "aside, read the file as text and use parse_csv('value', schema, on_error='split').",
        ),
        (
            SparkError(MISMATCH),
            "Encountered error while reading file file:///in/a.parquet. Data type mismatches when reading Parquet "
            "column [id]. Expected Spark type bigint, actual Parquet type BINARY. The file is damaged or does not fit "
            "the schema. Move it away, or correct the schema.",
        ),
    ],
)
def test_a_row_that_cannot_be_decoded_is_told_with_its_place_and_the_ways_out(raised: SparkError, told: str) -> None:
    assert str(to_penstock_error(raised)) == told


DIVISION = """[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it. SQLSTATE: 22012
== SQL (line 1, position 1) ==
{sql}
{carets}
"""


def failed(sql: str, part: str) -> SparkError:
    """What Spark says of a part of an expression."""
    return SparkError(DIVISION.format(sql=sql, carets=" " * sql.index(part) + "^" * len(part)))


@ps.pipeline("shop")
def shop(p: ps.Pipeline) -> None:
    read = p.read("orders", ps.rate.Source(rows_per_second=1))
    line["select"] = inspect.currentframe().f_lineno + 1
    made = read.select("at", "value / (value - 7) AS share", "CAST(value AS INT)").with_watermark("at", delay="1 s")
    mean = ps.agg.sum("1 / share").where("2 div share > 1").alias("n")
    line["agg"] = inspect.currentframe().f_lineno + 1
    totals = made.group_by(ps.tumbling("1 minute")).agg("totals", mean)
    totals.write("out", ps.memory.Sink())


line: dict[str, int] = {}


@pytest.mark.parametrize(
    ("sql", "part", "verb", "step"),
    [
        ("value / (value - 7) AS share", "value / (value - 7)", "select", "select at, value"),
        ("1 / share", "1 / share", "agg", "'totals'"),
        ("2 div share > 1", "2 div share", "agg", "'totals'"),
    ],
)
def test_an_expression_that_fails_is_told_with_its_step_and_line(sql: str, part: str, verb: str, step: str) -> None:
    graph = shop.graph()
    told = str(to_penstock_error(failed(sql, part), graph))

    assert told.startswith(f"{part!r} in {step}")
    assert f" at tests/core/test_explain.py:{line[verb]} cannot be computed: [DIVIDE_BY_ZERO] Division by zero" in told


def test_an_expression_of_nobodys_text_is_told_as_spark_says_it() -> None:
    by_column = DIVISION.partition("==")[0] + '== DataFrame ==\n"div" was called from\n/srv/shop.py:31\n'
    graph = shop.graph()

    assert str(to_penstock_error(SparkError(by_column), graph)).startswith(
        "'div' at /srv/shop.py:31 cannot be computed: "
    )
    for error in (failed("nothing / known", "nothing / known"), failed("share", "share"), SparkError(DIVISION)):
        assert str(to_penstock_error(error, graph)).startswith("An expression of the pipeline cannot be computed: [DIV")


def test_ours_stays_as_it_is() -> None:
    error = StorageFailed("full")
    assert to_penstock_error(error) is error
