"""Spark frames of Kafka's records: from the driver's hands, or read by the executors. Knows no position.

Both ways make the same columns with the same code. A frame's plan has one of two shapes, whatever the batch; numbers
of tasks are its data and offsets travel with the function, so nothing is compiled again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.accumulators import AccumulatorParam

from penstock.elements import Measure
from penstock.errors import ConnectorError
from penstock.sources.base import RECORD, UNDECIDED
from penstock.sources.collection import uncollected
from penstock.sources.kafka.decode import Shape
from penstock.sources.kafka.errors import FetchFailed
from penstock.sources.kafka.fetch import read
from penstock.sources.kafka.planning import cut
from penstock.sources.kafka.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from penstock.sources.kafka.client import Connection
    from penstock.sources.kafka.fetch import Run
    from penstock.sources.kafka.offsets import OffsetRange
    from penstock.sources.kafka.secrets import Option
    from penstock.sources.kafka.source import Source

ONE_TASK: Final = 10_000
"""Offsets up to which one task reads a batch: starting a second one takes longer than it saves."""

_ONE_PARTITION: Final = 2_000
"""Rows up to which a table stays in one partition of its frame."""


class Weights(AccumulatorParam[dict[str, tuple[int, int]]]):
    """Adds up rows and bytes by topic, as tasks report them."""

    def zero(self, value: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Nothing was read."""
        del value
        return {}

    def addInPlace(
        self, value1: dict[str, tuple[int, int]], value2: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Both together."""
        for topic, (rows, size) in value2.items():
            before = value1.get(topic, (0, 0))
            value1[topic] = before[0] + rows, before[1] + size
        return value1


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads the ranges of tasks, named by their number. Called by Spark in its Python workers.

    Attributes:
        tasks: the ranges of each.
        shape: of the rows.
        options: of the consumers, secrets by reference.
        patience: seconds without anything new after which a broker is given up.
        goes_on: a restart leaves out what is lost; so it is no reason to end the job.
        weight: told what was read.
    """

    tasks: tuple[tuple[OffsetRange, ...], ...]
    shape: Shape
    options: Mapping[str, Option] = field(repr=False)
    patience: float
    goes_on: bool
    weight: Accumulator[dict[str, tuple[int, int]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called with the numbers of the tasks that are this one's."""
        with uncollected():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.tasks[number])

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        try:
            for runs in read(ranges, self.options, patience=self.patience):
                for run in runs:
                    self.weight.add({run.at.topic: (len(run.messages), sum(map(len, run.messages)))})
                yield self.shape.batch(runs)
        except FetchFailed as error:
            raise FetchFailed({**error.told, "goes_on": self.goes_on}) from error
        except ConnectorError as error:
            raise FetchFailed({"message": str(error)}) from error


class Frames:
    """Makes the frames of one reader.

    Args:
        spark: the session.
        source: whose columns they have.
        connection: how workers reach the cluster.
    """

    def __init__(self, spark: SparkSession, source: Source, connection: Connection) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._spark = spark
        self._schema = source.schema(spark)
        self._shape = Shape(schema=cast("Any", to_arrow_schema)(self._schema, timezone="UTC"))
        if source.json is not None:
            decoder = source.json.decoder.in_zone(spark.conf.get("spark.sql.session.timeZone"))
            self._shape = replace(self._shape, decoded=source.json.name, decoder=decoder)
        if source.wanted is not None:
            decoded = set() if source.json is None else {RECORD, source.json.name}
            self._shape = replace(self._shape, unused=frozenset(self._schema.names) - source.wanted - decoded)
        self._options = connection.worker_options()
        self._patience = source.patience.fail / 1_000_000
        self._goes_on = source.on_lost_offsets == "continue"
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._weight = spark.sparkContext.accumulator({}, Weights())
        self._weighed: Mapping[str, tuple[int, int]] = {}
        self._numbers: dict[int, DataFrame] = {}
        self._sender = Sender(spark, self._schema)

    def weighed(self) -> Mapping[str, tuple[int, int]]:
        """Rows and bytes of each topic that workers have read since the last time; some perhaps more than once."""
        before, self._weighed = self._weighed, dict(self._weight.value)
        return {
            topic: (rows - before.get(topic, (0, 0))[0], size - before.get(topic, (0, 0))[1])
            for topic, (rows, size) in self._weighed.items()
            if topic not in before or before[topic][0] < rows
        }

    def of_ranges(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """A lazy frame of exactly the records of the ranges, read by the executors when it is run."""
        tasks = cut(ranges, 1 if sum(part.offsets for part in ranges) <= ONE_TASK else self._cores)
        reader = RangeReader(
            tasks=tasks,
            shape=self._shape,
            options=self._options,
            patience=self._patience,
            goes_on=self._goes_on,
            weight=self._weight,
        )
        return self._counted(len(tasks)).mapInArrow(reader, self._schema)

    def _counted(self, tasks: int) -> DataFrame:
        """The numbers of tasks as rows: data of the plan, not literals of its code."""
        if tasks not in self._numbers:
            rows = ", ".join(f"({number})" for number in range(tasks))
            self._numbers[tasks] = self._spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")
        return self._numbers[tasks]

    def table(self, runs: Sequence[Run]) -> pa.Table:
        """Records that are here as a table, one chunk for each partition of its frame."""
        import pyarrow as pa

        with uncollected():
            batch = self._shape.batch(runs)
        parts = 1 if batch.num_rows <= _ONE_PARTITION else self._cores
        share = -(-batch.num_rows // parts)
        return pa.Table.from_batches([batch.slice(at, share) for at in range(0, batch.num_rows, share)])

    def told(self, table: pa.Table) -> dict[str, Measure]:
        """What is known of a table: how many of its records Spark has to decode, if any were to be decoded here."""
        if RECORD not in table.column_names:
            return {}
        return {UNDECIDED: Measure.known({"rows": table.column(RECORD).null_count})}

    def of_table(self, table: pa.Table) -> DataFrame:
        """A lazy frame of rows that are here."""
        return self._sender.frame(table.to_batches())
