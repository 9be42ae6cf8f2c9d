"""Records of Kafka as Arrow record batches with the columns of a source; knows neither consumers nor offsets to come.

Used in the driver and in Python workers, so rows are the same wherever they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from penstock.sources.base import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.sources.json_blocks import JsonDecoder
    from penstock.sources.kafka.fetch import Message, Run


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """A column that is decoded while it is read, and by what."""

    name: str
    record: StructType
    decoder: JsonDecoder


_NO_TIME: Final = 0
"""The kind of timestamp of a record that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What record batches are made of. Can be pickled.

    Attributes:
        schema: their columns (Arrow), some or all of those of a source.
        decoded: the column of bytes that is decoded from JSON, if one is.
        decoder: which does it.
        unused: columns that nobody looks at: nothing but nulls.
    """

    schema: Any
    decoded: str | None = None
    decoder: JsonDecoder | None = None
    unused: frozenset[str] = frozenset()

    def batch(self, runs: Sequence[Run]) -> pa.RecordBatch:
        """The records of some runs as one record batch."""
        import pyarrow as pa

        messages = runs[0].messages if len(runs) == 1 else list(chain.from_iterable(run.messages for run in runs))
        columns = self._decoded(messages)
        for field in self.schema:
            if field.name in self.unused:
                columns[field.name] = pa.nulls(len(messages), field.type)
            elif field.name in _OF_RUN:
                columns[field.name] = _repeated(runs, _OF_RUN[field.name], field.type)
            elif field.name not in columns:
                columns[field.name] = _OF_RECORDS[field.name](messages, field.type)
        return pa.RecordBatch.from_arrays([columns[field.name] for field in self.schema], schema=self.schema)

    def _decoded(self, messages: Sequence[Message]) -> dict[str, Any]:
        if self.decoded is None or self.decoder is None:
            return {}
        decoded = self.decoder.decode(_BYTES[self.decoded](messages))
        return {RECORD: decoded.records, self.decoded: decoded.rest}


def _keys(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.key() for message in messages]


def _values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def _key(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_keys(messages), type)


def _value(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array(_values(messages), type)


def _headers(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` for a record without any, as in Spark; names may come again, and values be absent."""
    import pyarrow as pa

    headers = [message.headers() for message in messages]
    if not any(headers):
        return pa.nulls(len(headers), type)
    names: list[str] = []
    values: list[bytes | None] = []
    offsets: list[int | None] = []
    for each in headers:
        offsets.append(len(names) if each else None)
        for name, value in each or ():
            names.append(name)
            values.append(value)
    struct = type.value_type
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, struct[0].type), pa.array(values, struct[1].type)], fields=[struct[0], struct[1]]
    )
    return pa.ListArray.from_arrays(pa.array([*offsets, len(names)], pa.int32()), pairs, type=type)


def _offset(messages: Sequence[Message], type: Any) -> Any:
    import pyarrow as pa

    return pa.array([message.offset() for message in messages], type)


def _timestamp(messages: Sequence[Message], type: Any) -> Any:
    """``NULL`` where a record has none (the broker's way of saying so is a time before 1970)."""
    import pyarrow as pa

    kinds, millis = zip(*[message.timestamp() for message in messages], strict=True)
    if _NO_TIME in kinds or min(millis) < 0:
        millis = tuple(None if kind == _NO_TIME or at < 0 else at for kind, at in zip(kinds, millis, strict=True))
    return pa.array(millis, pa.int64()).cast(pa.timestamp("ms", type.tz)).cast(type)


def _repeated(runs: Sequence[Run], value: Callable[[Run], object], type: Any) -> Any:
    """A column that has one value for each run: made without looking at the records."""
    import pyarrow as pa

    return pa.concat_arrays([pa.repeat(pa.scalar(value(run), type), len(run.messages)) for run in runs])


_OF_RUN: Final[Mapping[str, Callable[[Run], object]]] = {
    "topic": lambda run: run.at.topic,
    "partition": lambda run: run.at.partition,
    "topic_partition": lambda run: str(run.at),
}
_OF_RECORDS: Final[Mapping[str, Callable[[Sequence[Message], Any], Any]]] = {
    "key": _key,
    "value": _value,
    "headers": _headers,
    "offset": _offset,
    "timestamp": _timestamp,
}
_BYTES: Final = {"key": _keys, "value": _values}
