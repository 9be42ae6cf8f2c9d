"""Records to columns: text lines and payloads decoded as pure column expressions; knows no source, sink or file.

Every decoding here has the same three properties. A record is decoded once, however often its columns are used. A
record that is not wholly what the schema says is *bad*, never half read: a field of the wrong type, something after
the record, ``null`` in place of a record. And nothing in the generated code changes from batch to batch.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import DecodeError, GraphError, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

DECODED: Final = "_parsed"
"""Column of a decoded frame: the record as a struct, ``NULL`` or incomplete where it is bad."""

REASON: Final = "_bad"
"""Column of a decoded frame: why the record is bad, ``NULL`` where it is good."""

ERROR: Final = "_error"
"""Column of rejected rows: why the record is bad."""

DECODE_MARK: Final = "penstock.decode:"
"""Stands before what our code tells of a bad record in an exception's text, as JSON."""

CLIP: Final = 300
"""Characters of a bad record that an error shows."""

_CORRUPT = "_penstock_corrupt"
_OURS = frozenset({"mode", "columnnameofcorruptrecord", "lineseparator", "linesep", "multiline", "encoding", "charset"})
# Jackson stops at strings of 20 million characters unless told otherwise.
_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "maxStringLen": str(2**31 - 1)}
_CSV = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def check_options(options: Mapping[str, object]) -> dict[str, str]:
    """The options of a decoder as Spark takes them.

    Raises:
        GraphError: an option would change what a record or a bad record is.
    """
    for name in options:
        if name.lower() in _OURS:
            msg = (
                f"option {name!r} cannot be set: a record is one line of UTF-8, and bad records have their "
                "own way out (parse_json(..., on_error=...)); records of several lines are not supported"
            )
            raise GraphError(msg)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def struct_type(spark: SparkSession, schema: str | StructType) -> StructType:
    """A declared schema as Spark's type, every column nullable.

    Args:
        spark: the session whose parser reads the text.
        schema: columns as DDL (``"id LONG, user STRING"``) or as a ``StructType``.

    Raises:
        GraphError: the text is no list of columns, or a name stands twice.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    if isinstance(schema, str):
        try:
            # Not StructType.fromDDL: that asks for the one active session.
            parsed = StructType.fromJson(json.loads(_jvm(spark).StructType.fromDDL(schema).json()))
        except Exception as error:
            if not isinstance(error, PySparkException) and "ParseException" not in str(error):
                raise
            msg = f"schema {schema!r} is no list of columns such as 'id LONG, user STRING': {_first_line(error)}"
            raise GraphError(msg) from error
    else:
        parsed = schema
    seen: set[str] = set()
    for name in parsed.fieldNames():
        if name.lower() in seen:
            msg = (
                f"column {name!r} stands twice in the schema {parsed.simpleString()} (case does not count): rename one"
            )
            raise GraphError(msg)
        seen.add(name.lower())
    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in parsed.fields])


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.spark.sql.types  # type: ignore[union-attr]  # noqa: SLF001


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def json_columns(
    value: Column, schema: StructType, options: Mapping[str, object] | None = None
) -> tuple[Column, Column]:
    """A column of JSON text as a struct, and why it is bad (``NULL``: it is good), as two expressions.

    Both hold the decoding: in one projection it may be run twice. :func:`decode_json` puts them on two levels of the
    plan, and is what steps should use.

    Args:
        value: text, one JSON object each.
        schema: the fields wanted; other fields are ignored, absent ones are ``NULL``. A ``STRING`` field takes any
            JSON value as its text, which is Spark's rule; every other type must match.
        options: of Spark's ``from_json`` (``timestampFormat``, …).
    """
    envelope = _json_envelope(value, schema, options or {})
    return envelope["v"], _reason(value, envelope["v"], envelope[_CORRUPT], "JSON", schema)


def _json_envelope(value: Column, schema: StructType, options: Mapping[str, object]) -> Column:
    """Decode inside an object of our own: what follows the record, or a bare ``null``, then is an error too."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    outer = StructType([StructField("v", schema, True), StructField(_CORRUPT, StringType(), True)])
    wrapped = F.concat(F.lit('{"v":'), value.cast("string"), F.lit("}"))
    return F.from_json(wrapped, outer, {**check_options(options), **_JSON})


def _reason(value: Column, record: Column, corrupt: Column, what: str, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    text = value.cast("string")
    wanted = schema.simpleString()
    told = f"malformed {what}, or a field that is not of its declared type ({wanted}): "
    shown = F.when(F.length(text) > CLIP, F.concat(F.left(text, F.lit(CLIP)), F.lit("…"))).otherwise(text)
    return F.when(value.isNull(), F.lit("null value")).when(
        record.isNull() | corrupt.isNotNull(), F.concat(F.lit(told), shown)
    )


def decode_json(
    frame: DataFrame, column: str, schema: StructType, options: Mapping[str, object] | None = None
) -> DataFrame:
    """``frame`` with two columns more: the record (:data:`DECODED`) and why it is bad (:data:`REASON`).

    Lazy; decodes each record once. Hand the result to :func:`good`, :func:`rejected`, :func:`strict` or
    :func:`lenient`; an observation of ``count_if(_bad IS NOT NULL)`` may be put between.

    >>> decoded = decode_json(frame, "value", schema)  # doctest: +SKIP
    >>> parsed, bad = good(decoded, "value", schema), rejected(decoded)  # doctest: +SKIP
    """
    from pyspark.sql import functions as F

    value = F.col(_quoted(column))
    staged = frame.withColumn(DECODED, _json_envelope(value, schema, options or {}))
    record, corrupt = F.col(f"{DECODED}.v"), F.col(f"{DECODED}.{_CORRUPT}")
    kept = [F.col(_quoted(name)) for name in frame.columns]
    why = _reason(value, record, corrupt, "JSON", schema)
    return staged.select(*kept, record.alias(DECODED), why.alias(REASON))


def decode_csv(
    frame: DataFrame, column: str, schema: StructType, options: Mapping[str, object] | None = None
) -> DataFrame:
    """The same for one line of CSV. Too few or too many fields are bad too; a quoted line break is not supported."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    value = F.col(_quoted(column))
    outer = StructType([*schema.fields, StructField(_CORRUPT, StringType(), True)])
    given = {**check_options(options or {}), **_CSV}
    record = F.from_csv(value, F.lit(_ddl(outer)), given)
    kept = [F.col(_quoted(name)) for name in frame.columns]
    why = _reason(value, F.col(DECODED), F.col(f"{DECODED}.{_CORRUPT}"), "CSV", schema)
    return frame.withColumn(DECODED, record).select(*kept, F.col(DECODED), why.alias(REASON))


def good(decoded: DataFrame, column: str, schema: StructType) -> DataFrame:
    """The good rows: the columns of before without ``column``, then the record's. Bad rows are left out."""
    return _opened(decoded, f"CASE WHEN {REASON} IS NULL THEN array({DECODED}) ELSE array() END", column, schema)


def rejected(decoded: DataFrame) -> DataFrame:
    """The bad rows: all columns of before, unchanged, and :data:`ERROR` with the reason."""
    from pyspark.sql import functions as F

    kept = [_quoted(name) for name in decoded.columns if name not in (DECODED, REASON)]
    why = f"CASE WHEN {REASON} IS NULL THEN array() ELSE array({REASON}) END"  # a filter would be pushed below decoding
    return decoded.select(*map(F.col, kept), F.explode(F.expr(why)).alias(ERROR))


def lenient(decoded: DataFrame, column: str, schema: StructType) -> DataFrame:
    """All rows; the record's columns are all ``NULL`` where it is bad."""
    return _opened(decoded, f"array(CASE WHEN {REASON} IS NULL THEN {DECODED} END)", column, schema)


def strict(
    decoded: DataFrame, column: str, schema: StructType, *, place: str = "NULL", skip: str = "false"
) -> DataFrame:
    """The good rows; the first bad one fails the job, whatever columns are used later (see :func:`explain`).

    Args:
        decoded: from :func:`decode_json` or :func:`decode_csv`.
        column: the decoded column, which goes.
        schema: of the record.
        place: SQL for where the row came from, as text.
        skip: SQL condition of rows that are neither good nor bad (blank lines).
    """
    told = f"concat('{DECODE_MARK}', to_json(named_struct('place', {place}, 'reason', {REASON})))"
    rows = f"WHEN {REASON} IS NOT NULL THEN raise_error({told}) ELSE array({DECODED}) END"
    return _opened(decoded, f"CASE WHEN {skip} THEN array() {rows}", column, schema)


def _opened(decoded: DataFrame, records: str, column: str, schema: StructType) -> DataFrame:
    """One row for each record of an array, with the record's fields as columns.

    A generator, not a filter and a projection: the optimiser would push either below the decoding and decode twice,
    or drop the check of a row whose columns nobody uses.
    """
    kept = [_quoted(n) for n in decoded.columns if n not in (DECODED, REASON) and n != column]
    names = [_quoted(name) for name in schema.fieldNames()]
    return decoded.selectExpr(*kept, f"inline({records})").select(*kept, *names)


def parsed_schema(rows: StructType, column: str, record: StructType) -> StructType:
    """Columns after a parse: those of ``rows`` without ``column``, then those of ``record``.

    Raises:
        SchemaMismatch: there is no such column, it is no text, or a name would stand twice.
    """
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    if column not in rows.fieldNames():
        msg = f"there is no column {column!r} to parse; there are {', '.join(rows.fieldNames())}"
        raise SchemaMismatch(msg)
    if not isinstance(rows[column].dataType, (StringType, BinaryType)):
        msg = f"column {column!r} is {rows[column].dataType.simpleString()}, only STRING or BINARY can be parsed"
        raise SchemaMismatch(msg)
    kept = [field for field in rows.fields if field.name != column]
    taken = {field.name.lower() for field in kept}
    twice = sorted(name for name in record.fieldNames() if name.lower() in taken)
    if twice:
        msg = f"parsing {column!r} would make {', '.join(twice)} stand twice: drop or rename the column before it"
        raise SchemaMismatch(msg)
    return StructType([*kept, *(StructField(f.name, f.dataType, True, f.metadata) for f in record.fields)])


def explain(exception: BaseException) -> DecodeError | None:
    """What a failed Spark job says about a bad record, or ``None`` if it failed for another reason."""
    for told in marked(exception, DECODE_MARK):
        place = told.get("place") or "a payload"
        remedy = told.get("remedy") or (
            "to keep such rows aside instead of failing, read them as text and use "
            "parse_json('value', schema, on_error='split')"
        )
        return DecodeError(f"{place}: {told.get('reason')}; {remedy}")
    return None


def marked(exception: BaseException, mark: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that our own code put behind ``mark`` into an exception's text, wherever it was raised."""
    seen: set[int] = set()
    link: BaseException | None = exception
    decoder = json.JSONDecoder()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = str(link)
        for hit in re.finditer(re.escape(mark), text):
            try:
                value, _ = decoder.raw_decode(text, hit.end())
            except ValueError:
                continue  # the mark in a quoted source line
            if isinstance(value, dict):
                yield value
        link = link.__cause__ or link.__context__


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
