"""JSON and CSV text to columns, as Spark SQL expressions: each record decoded once, the same code in every batch.

A record that does not wholly match the schema is *bad*, never half read: a field of the wrong type, text after the
record, ``null`` in place of a record.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import DecodeError, GraphError, SchemaMismatch, did_you_mean, no_column, sentence
from penstock.spark.query_log import first_line
from penstock.spark.session import parse_ddl
from penstock.spark.sql import quote_identifier, string_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

DECODED: Final = "_parsed"
"""Column of a decoded frame: the record as a struct, ``NULL`` or incomplete where it is bad."""
REASON: Final = "_bad"
"""Column of a decoded frame: why the record is bad; ``NULL`` where it is good."""
ERROR: Final = "_error"
"""Column of rejected rows: why the record is bad."""
DECODE_MARK: Final = "penstock.decode:"
"""Precedes the JSON that describes a bad record, in the text of an exception."""
MAX_SHOWN_CHARS: Final = 300
"""Characters of a bad record that an error shows."""
_MAX_TYPE_CHARS: Final = 80
"""Characters of a declared type that an error shows."""
_PATH: Final = ("$['", "']")
"""Around the name of a field, as ``get_json_object`` takes it."""
_FIELD: Final = "field '"
_NOT_OF_TYPE: Final = "' is not of its declared type "
_MALFORMED_CSV: Final = "malformed CSV"
"""How each reason begins for which a record of CSV is bad: ``explain`` has other advice for it."""
_JSON_REMEDY: Final = (
    "To keep such rows aside instead of failing, read them as text and use "
    "parse_json('value', schema, on_error='split')."
)
_CSV_REMEDY: Final = (
    "Correct schema=, options= (sep, quote, header, timestampFormat, …) or the line in its file, and start again. Or, "
    "to keep such lines aside, read the file as text and use parse_csv('value', schema, on_error='split')."
)
_CORRUPT = "_penstock_corrupt"
_RECORDS: Final = "_penstock_records"
"""The array in which a JSON record stands while it is decoded."""
_END: Final = "_penstock_end"
"""The field behind that array."""
_RESERVED = frozenset(
    {"mode", "columnnameofcorruptrecord", "lineseparator", "linesep", "multiline", "encoding", "charset"}
)
_TIMES = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat", "enableDateTimeParsingFallback")
_EFFECTIVE: Final[Mapping[str, tuple[str, ...]]] = {
    "json": (
        *(*_TIMES, "timeZone", "locale"),
        *("allowComments", "allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros"),
        *("allowNonNumericNumbers", "allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars"),
        *("maxNestingDepth", "maxNumLen"),
    ),
    "csv": (
        *(*_TIMES, "timeZone", "locale"),
        *("header", "sep", "delimiter", "quote", "escape", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"),
        *("comment", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"),
        *("nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf"),
        *("maxColumns", "maxCharsPerColumn", "inputBufferSize"),
    ),
    "parquet": ("datetimeRebaseMode", "int96RebaseMode"),
    "text": (),
}
"""By format, the options that change what is read. Others of Spark infer a schema, find files or write them."""
_ESCAPED: Final = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "'", '"': '"', "\\": "\\"}
"""By the character after a backslash, what it means in a separator of CSV."""
# Jackson by default stops at strings of 20 million characters.
_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "maxStringLen": str(2**31 - 1)}
_CSV = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def check_options(options: Mapping[str, object], format: str) -> dict[str, str]:
    """The options of a decoder as Spark takes them.

    Raises:
        GraphError: an option would change what a record or a bad record is, or would have no effect.
    """
    effective = _EFFECTIVE[format]
    for name in options:
        if name.lower() in _RESERVED and format in ("json", "csv"):
            parse = "parse_json" if format == "json" else "parse_csv"
            msg = (
                f"Option {name!r} cannot be set, because each record is a text of its own, and a bad one fails the "
                f"job. Leave it out. To keep bad records, read the lines as text and use {parse}(…, on_error='split')."
            )
            raise GraphError(msg)
        check_effect(name, effective, f"{format} is read")
    chosen = _as_text(options)
    if format == "csv":
        for name, value in chosen.items():
            _check_characters(name, value)
    return chosen


def _check_characters(name: str, value: str) -> None:
    if name.lower() in ("sep", "delimiter") and not re.fullmatch(r"""(?:[^\\]|\\[trbf'"\\])+""", value, re.DOTALL):
        msg = (
            f"Option {name!r} is {value!r}, which Spark cannot read. Give the characters between two values, a tab as "
            r"'\t', and a backslash as '\\'."
        )
        raise GraphError(msg)
    if name.lower() in ("quote", "escape", "comment") and len(value) > 1:
        msg = f"Option {name!r} is {value!r}, but must be one character. Give one character, or '' for none."
        raise GraphError(msg)


def unescaped_separator(value: str) -> str:
    r"""The characters that a separator of CSV, as Spark takes it, stands for.

    >>> unescaped_separator(r"\t"), unescaped_separator("||")
    ('\t', '||')
    """
    return re.sub(r"\\(.)", lambda found: _ESCAPED[found[1]], value)


def check_effect(name: str, effective: Sequence[str], when: str) -> None:
    """Refuse an option that would change nothing; case does not count.

    Raises:
        GraphError: it is not among the options that have an effect; names the nearest one.
    """
    if name.lower() not in (each.lower() for each in effective):
        there = f"Options: {', '.join(sorted(effective))}." if effective else "Leave it out."
        hint = did_you_mean(name, effective, otherwise=there)
        msg = f"Option {name!r} has no effect when {when}{hint}"
        raise GraphError(msg)


def _as_text(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def struct_type(spark: SparkSession, schema: str | StructType) -> StructType:
    """A declared schema as Spark's type, every column nullable.

    Args:
        spark: the session whose parser reads the text.
        schema: columns as DDL (``"id LONG, user STRING"``) or as a ``StructType``.

    Raises:
        GraphError: the text is no list of columns, or a name appears twice.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    if isinstance(schema, str):
        try:
            parsed = StructType.fromJson(json.loads(parse_ddl(spark, schema)))
        except Exception as error:
            if not isinstance(error, PySparkException) and "ParseException" not in str(error):
                raise
            msg = (
                f"Schema {schema!r} is no list of columns: {first_line(error)}. Write it as in 'id LONG, user STRING'."
            )
            raise GraphError(msg) from error
    else:
        parsed = schema
    seen: set[str] = set()
    for name in parsed.fieldNames():
        if name.lower() in seen:
            shown = parsed.simpleString()
            msg = f"Column {name!r} appears twice in the schema {shown} (case does not count). Rename one."
            raise GraphError(msg)
        seen.add(name.lower())
    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in parsed.fields])


def decode_json(
    frame: DataFrame,
    column: str,
    schema: StructType,
    options: Mapping[str, object] | None = None,
    *,
    done: str | None = None,
) -> DataFrame:
    """``frame`` with two more columns: the record (``DECODED``) and why it is bad (``REASON``).

    Lazy; decodes each record once. The result is for ``drop_malformed``, ``malformed``, ``failfast`` or
    ``permissive``; an observation of ``count_if(_bad IS NOT NULL)`` may come first. Built from SQL text, which
    takes a third of the time of building columns.

    ``done`` is a column of records that the source has already decoded, which is dropped: Spark decodes only where it
    is ``NULL``.

    >>> decoded = decode_json(frame, "value", schema)  # doctest: +SKIP
    >>> parsed, bad = drop_malformed(decoded, "value"), malformed(decoded)  # doctest: +SKIP
    """
    record = f"CASE WHEN size({DECODED}.{_RECORDS}) = 1 AND {DECODED}.{_END} THEN get({DECODED}.{_RECORDS}, 0) END"
    why = _reason(column, record, _json_problem(f"CAST({quote_identifier(column)} AS STRING)", record, schema))
    return _staged(frame, column, _json_envelope(column, schema, options), record, why, done=done)


def _json_envelope(column: str, schema: StructType, options: Mapping[str, object] | None) -> str:
    """Decode the text as the only element of an array, in an object with another field behind it.

    Spark reads one value and ignores what follows. So text behind the record, which would close the object, or bring
    another value into it, is found by the lack of the field, or by the number of elements.
    """
    given = dict(options or {})
    end = ""
    for name, value in given.items():
        if name.lower() == "maxnestingdepth" and str(value).isdecimal():
            given[name] = int(str(value)) + 2  # of the record alone
        elif name.lower() == "allowcomments":
            end = "char(10), "  # a comment to the end of the line would hide what comes behind the record
    wrapped = f"concat('{{\"{_RECORDS}\":[', CAST({quote_identifier(column)} AS STRING), {end}'],\"{_END}\":true}}')"
    columns = string_literal(f"{_RECORDS} ARRAY<{_sql_type(schema)}>, {_END} BOOLEAN, {_CORRUPT} STRING")
    return f"from_json({wrapped}, {columns}, {_options(given, _JSON)})"


def decode_csv(
    frame: DataFrame, column: str, schema: StructType, options: Mapping[str, object] | None = None
) -> DataFrame:
    """Like ``decode_json``, for lines of CSV. Too few or too many fields are bad; quoted line breaks are too."""
    columns = string_literal(to_ddl(with_corrupt(schema)))
    record = f"from_csv(CAST({quote_identifier(column)} AS STRING), {columns}, {_options(options, _CSV)})"
    why = _reason(column, DECODED, string_literal(_csv_problem(schema)), null=f"{_MALFORMED_CSV}: null value")
    return _staged(frame, column, record, DECODED, why)


MULTI_LINE: Final = {**_CSV, "multiLine": "true"}
"""Options with which Spark's reader of CSV files makes the frame that ``decoded_csv`` takes."""


def with_corrupt(schema: StructType) -> StructType:
    """The columns of a frame for ``decoded_csv``."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(_CORRUPT, StringType())])


def decoded_csv(frame: DataFrame, schema: StructType, file: str) -> DataFrame:
    """Like ``decode_csv``, for records that Spark's reader has decoded. ``value`` is the text of a bad one.

    ``file`` is SQL for the column ``_file``.
    """
    fields = ", ".join(f"{string_literal(f.name)}, {quote_identifier(f.name)}" for f in schema.fields)
    problem = f"concat({string_literal(_csv_problem(schema))}, ': ', {_shown(_CORRUPT)})"
    return frame.selectExpr(
        f"{_CORRUPT} AS value",
        f"{file} AS _file",
        f"named_struct({fields}) AS {DECODED}",
        f"CASE WHEN {_CORRUPT} IS NOT NULL THEN {problem} END AS {REASON}",
    )


def _csv_problem(schema: StructType) -> str:
    return f"{_MALFORMED_CSV}, or a field that is not of its declared type ({schema.simpleString()})"


def _staged(
    frame: DataFrame, column: str, decoding: str, record: str, why: str, *, done: str | None = None
) -> DataFrame:
    """Decode in one projection and derive ``DECODED`` and ``REASON`` in the next one, so that decoding runs once."""
    kept = [quote_identifier(name) for name in frame.columns if name != done]
    if done is None:
        staged = frame.selectExpr(*kept, f"{decoding} AS {DECODED}")
    else:
        by_source = quote_identifier(done)
        undecoded = f"{by_source} IS NULL AND {quote_identifier(column)} IS NOT NULL"
        staged = frame.selectExpr(*kept, by_source, f"CASE WHEN {undecoded} THEN {decoding} END AS {DECODED}")
        record = f"coalesce({by_source}, {record})"
        why = f"CASE WHEN {by_source} IS NULL THEN {why} END"
    return staged.selectExpr(*kept, f"{record} AS {DECODED}", f"{why} AS {REASON}")


def _reason(column: str, record: str, problem: str, *, null: str = "null value") -> str:
    """SQL for why a record is bad: ``problem``, or ``null`` for a ``NULL`` in the column."""
    value = quote_identifier(column)
    shown = _shown(f"CAST({value} AS STRING)")
    bad = f"WHEN {record} IS NULL OR {DECODED}.{_CORRUPT} IS NOT NULL THEN concat({problem}, ': ', {shown})"
    return f"CASE WHEN {value} IS NULL THEN {string_literal(null)} {bad} END"


def _shown(text: str) -> str:
    """SQL for a bad record in a message; the column keeps bytes that are no text."""
    valid = f"make_valid_utf8({text})"
    clipped = f"concat(left({valid}, {MAX_SHOWN_CHARS}), '…')"
    return f"CASE WHEN length({text}) > {MAX_SHOWN_CHARS} THEN {clipped} ELSE {valid} END"


def _json_problem(text: str, record: str, schema: StructType) -> str:
    """SQL for what is wrong with a bad JSON record: the fields that the text has and the record lacks.

    Only bad records compute it. Spark keeps the good fields of a record that is well-formed.
    """
    declared = ", ".join(
        f"named_struct('n', {string_literal(f.name)}, 't', {string_literal(_clipped_type(f.dataType))})"
        for f in schema.fields
    )
    there = f"array_contains(json_object_keys({text}), field.n)"
    path = f"concat({string_literal(_PATH[0])}, field.n, {string_literal(_PATH[1])})"
    lost = f"NOT array_contains(json_object_keys(to_json({record})), field.n)"
    is_wrong = f"{there} AND get_json_object({text}, {path}) IS NOT NULL AND {lost}"
    wrong = f"filter(array({declared}), field -> {is_wrong})"
    named = f"transform({wrong}, field -> concat(field.n, {string_literal(_NOT_OF_TYPE)}, field.t))"
    return (
        f"CASE WHEN json_object_keys({text}) IS NULL THEN 'malformed JSON' "
        f"WHEN {record} IS NULL THEN 'malformed JSON, or a field that is not of its declared type' "
        f"WHEN size({wrong}) = 0 THEN 'malformed JSON, or a nested field that is not of its declared type' "
        f"ELSE concat({string_literal(_FIELD)}, array_join({named}, {string_literal(', ' + _FIELD)})) END"
    )


def _clipped_type(kind: DataType) -> str:
    shown = kind.simpleString()
    return shown if len(shown) <= _MAX_TYPE_CHARS else f"{shown[: _MAX_TYPE_CHARS - 1]}…"


def drop_malformed(decoded: DataFrame, column: str) -> DataFrame:
    """The good rows: the columns of the frame without ``column``, then those of the record."""
    return _opened(decoded, f"CASE WHEN {REASON} IS NULL THEN array({DECODED}) ELSE array() END", column)


def malformed(decoded: DataFrame) -> DataFrame:
    """The bad rows: all columns of the frame, unchanged, and ``ERROR`` with the reason."""
    kept = [quote_identifier(name) for name in decoded.columns if name not in (DECODED, REASON)]
    # A filter would be pushed below the decoding.
    why = f"CASE WHEN {REASON} IS NULL THEN array() ELSE array({REASON}) END"
    return decoded.selectExpr(*kept, f"explode({why}) AS {ERROR}")


def permissive(decoded: DataFrame, column: str) -> DataFrame:
    """All rows; the record's columns are all ``NULL`` where it is bad."""
    return _opened(decoded, f"array(CASE WHEN {REASON} IS NULL THEN {DECODED} END)", column)


def failfast(
    decoded: DataFrame, column: str, *, place: str = "NULL", skip: str = "false", drop_others: bool = False
) -> DataFrame:
    """The good rows; a bad one fails the job, whichever columns are used later (see ``explain``).

    Args:
        decoded: from ``decode_json`` or ``decode_csv``.
        column: the decoded column, which is dropped.
        place: SQL for where the row came from, as text.
        skip: SQL condition of rows that are neither good nor bad (blank lines).
        drop_others: drop all other columns too.
    """
    details = f"concat('{DECODE_MARK}', to_json(named_struct('place', {place}, 'reason', {REASON})))"
    rows = f"WHEN {REASON} IS NOT NULL THEN raise_error({details}) ELSE array({DECODED}) END"
    return _opened(decoded, f"CASE WHEN {skip} THEN array() {rows}", column, drop_others=drop_others)


def _opened(decoded: DataFrame, records: str, column: str, *, drop_others: bool = False) -> DataFrame:
    """One row for each record of an array, with the record's fields as columns.

    Uses a generator: the optimiser would push a filter or a projection below the decoding and decode twice, or drop
    the check of a row whose columns are not used.
    """
    kept = [] if drop_others else [quote_identifier(n) for n in decoded.columns if n not in (DECODED, REASON, column)]
    rows = decoded.selectExpr(*kept, f"inline({records})")
    return rows.drop(_CORRUPT) if _CORRUPT in rows.columns else rows


def place_of(columns: Iterable[str]) -> str | None:
    """SQL for where a row came from, as far as its columns say: ``orders/3, offset 17``, a shard, or a file."""
    known = set(columns)
    if known.issuperset(("shard", "sequence_number")):
        # The column of numbers is NULL if no step uses it.
        number = "coalesce(concat(', sequence number ', CAST(sequence_number AS STRING)), '')"
        return f"concat('Shard ', CAST(shard AS STRING), {number})"
    if known.issuperset(("topic", "partition", "offset")):
        return "concat(CAST(topic AS STRING), '/', CAST(partition AS STRING), ', offset ', CAST(offset AS STRING))"
    return "CAST(_file AS STRING)" if "_file" in known else None


def parsed_schema(rows: StructType, column: str, record: StructType) -> StructType:
    """Columns after a parse: those of ``rows`` without ``column``, then those of ``record``.

    Raises:
        SchemaMismatch: there is no such column, it is no text, or a name would appear twice.
    """
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    if column not in rows.fieldNames():
        raise SchemaMismatch(no_column(column, rows.fieldNames()))
    if not isinstance(rows[column].dataType, (StringType, BinaryType)):
        kind = rows[column].dataType.simpleString()
        msg = f"Column {column!r} is {kind}, but only STRING or BINARY can be parsed. Cast it to STRING first."
        raise SchemaMismatch(msg)
    kept = [field for field in rows.fields if field.name != column]
    kept_names = {field.name.lower() for field in kept}
    twice = sorted(name for name in record.fieldNames() if name.lower() in kept_names)
    if twice:
        those = ", ".join(map(repr, twice))
        msg = f"Parsing {column!r} would make {those} appear twice. Drop or rename the older column first."
        raise SchemaMismatch(msg)
    return StructType([*kept, *(StructField(f.name, f.dataType, True, f.metadata) for f in record.fields)])


def explain(exception: BaseException) -> DecodeError | None:
    """The error of a Spark job that failed because of a bad record; ``None`` for other failures."""
    for details in parse_marked(exception, DECODE_MARK):
        place = details.get("place") or "A row"
        reason = str(details.get("reason"))
        remedy = details.get("remedy") or (_CSV_REMEDY if reason.startswith(_MALFORMED_CSV) else _JSON_REMEDY)
        return DecodeError(f"{place}: {sentence(reason)} {sentence(remedy)}")
    return None


def parse_marked(exception: BaseException, mark: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that follow ``mark`` in the texts of an exception and of its causes."""
    seen: set[int] = set()
    link: BaseException | None = exception
    decoder = json.JSONDecoder()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = str(link)
        for found in re.finditer(re.escape(mark), text):
            try:
                value, _ = decoder.raw_decode(text, found.end())
            except ValueError:
                continue  # a quoted source line that contains the mark
            if isinstance(value, dict):
                yield value
        link = link.__cause__ or link.__context__


def _sql_type(kind: DataType) -> str:
    """A type as SQL, with the names of fields quoted."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quote_identifier(f.name)}: {_sql_type(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_sql_type(kind.keyType)}, {_sql_type(kind.valueType)}>"
    return kind.simpleString()


def to_ddl(schema: StructType) -> str:
    """A schema as DDL, which ``struct_type`` reads again."""
    return ", ".join(f"{quote_identifier(f.name)} {_sql_type(f.dataType)}" for f in schema.fields)


def _options(options: Mapping[str, object] | None, fixed: Mapping[str, str]) -> str:
    pairs = {**_as_text(options or {}), **fixed}
    return f"map({', '.join(f'{string_literal(name)}, {string_literal(value)}' for name, value in pairs.items())})"
