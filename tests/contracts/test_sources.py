"""Every source of ours keeps the contract."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from kinesis_fake import FakeKinesis
from penstock.connectors import generator, kinesis, rate
from penstock.connectors.files import source
from penstock.connectors.files.listing import SMALLEST_CUT
from penstock.connectors.kinesis.aggregation import UserRecord, pack, unpack
from penstock.connectors.kinesis.reader import KinesisReader
from penstock.connectors.kinesis.shards import decode
from penstock.handles import Guarantee, Position
from penstock.interfaces.source import ReadLimit, Source, SourceContext, Until
from penstock.testing.clock import ManualClock
from penstock.testing.contracts import SourceContract
from penstock.testing.frames import Row
from penstock.testing.sources import End, Pause, ScriptedSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark


class TestGenerator(SourceContract):
    @pytest.fixture
    def source(self) -> Source:
        return generator.Source(lambda f: f.selectExpr("n AS id", "concat('u', n % 2) AS user"), rows=5)

    @pytest.fixture
    def expected(self) -> list[Row]:
        return [{"id": n, "user": f"u{n % 2}"} for n in range(5)]


class TestRate(SourceContract):
    until: ClassVar[Until] = Until.STOPPED

    @pytest.fixture
    def source(self) -> Source:
        return rate.Source(2, limit=5)

    @pytest.fixture
    def expected(self) -> list[Row]:
        start = datetime(2026, 1, 1, tzinfo=timezone.utc)
        return [{"value": n, "at": start + timedelta(seconds=n / 2)} for n in range(5)]


class TestScripted(SourceContract):
    @pytest.fixture
    def source(self) -> Source:
        rows = [{"id": n, "at": f"2026-01-01T00:00:0{n}Z"} for n in range(5)]
        return ScriptedSource("id LONG, at TIMESTAMP", [*rows[:3], Pause("1 minute"), *rows[3:], End()])

    @pytest.fixture
    def expected(self) -> list[Row]:
        return [{"id": n, "at": f"2026-01-01T00:00:0{n}Z"} for n in range(5)]


class TestScriptedPartitions(SourceContract):
    @pytest.fixture
    def source(self, expected: list[Row]) -> Source:
        items = [*expected[:3], Pause("0 seconds"), *expected[3:], End()]
        return ScriptedSource("id LONG, partition INT", items, partition_column="partition")

    @pytest.fixture
    def expected(self) -> list[Row]:
        return [{"id": n, "partition": n % 3} for n in range(8)]


ROWS: list[Row] = [{"id": n, "user": f"ü{n % 2}"} for n in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


def stamped(path: Path, number: int) -> None:
    """Files are read in order of their times."""
    os.utime(path, ns=(number * 10**9, number * 10**9))


class TestFilesOfJson(SourceContract):
    @pytest.fixture
    def source(self, folder: Path) -> Source:
        for number in range(3):
            path = folder / f"{number}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[2 * number : 2 * number + 2]))
            stamped(path, number)
        return source.Source(folder, schema="id LONG, user STRING", max_files_per_batch=1)

    @pytest.fixture
    def expected(self) -> list[Row]:
        return ROWS


class TestBoundedFilesOfCsv(TestFilesOfJson):
    """Also ends by itself, and reads compressed files."""

    until: ClassVar[Until] = Until.STOPPED

    @pytest.fixture
    def source(self, folder: Path) -> Source:
        for number in range(3):
            path = folder / f"{number}.csv.gz"
            lines = "".join(f"{row['id']},{row['user']}\n" for row in ROWS[2 * number : 2 * number + 2])
            path.write_bytes(gzip.compress(lines.encode()))
            stamped(path, number)
        return source.Source(folder, format="csv", schema="id LONG, user STRING", max_files_per_batch=1, bounded=True)


class TestFilesInCuts(SourceContract):
    """One big file is read in parts."""

    limits: ClassVar[ReadLimit] = ReadLimit(bytes=SMALLEST_CUT)

    @pytest.fixture
    def source(self, folder: Path, expected: list[Row]) -> Source:
        (folder / "all.json").write_text("".join(json.dumps(row) + "\n" for row in expected))
        return source.Source(folder, schema="id LONG, user STRING", split_bytes=SMALLEST_CUT)

    @pytest.fixture
    def expected(self) -> list[Row]:
        return [{"id": n, "user": f"{n}" * (SMALLEST_CUT // 4)} for n in range(9)]


class TestFilesOfParquet(TestFilesOfJson):
    @pytest.fixture
    def source(self, folder: Path) -> Source:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number in range(3):
            path = folder / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(ROWS[2 * number : 2 * number + 2]), path)
            stamped(path, number)
        return source.Source(folder, format="parquet", max_files_per_batch=1)


@dataclass(frozen=True)
class OnFakeKinesis:
    """A Kinesis source whose client is a fake, read without threads."""

    stream: FakeKinesis
    source: kinesis.Source = field(default_factory=lambda: kinesis.Source("orders"))

    @property
    def guarantee(self) -> Guarantee:
        return self.source.guarantee

    @property
    def partition_column(self) -> str:
        return self.source.partition_column

    def schema(self, spark: SparkSession) -> StructType:
        return self.source.schema(spark)

    def describe(self) -> str:
        return self.source.describe()

    def open(self, context: SourceContext, resume: Position | None) -> KinesisReader:
        position = None if resume is None else decode(resume)
        clock = ManualClock()
        context = replace(context, wall=clock.wall)
        return KinesisReader(self.source, context, position, client=self.stream, clock=clock, threads=0)


class TestKinesis(SourceContract):
    @pytest.fixture
    def source(self) -> Source:
        stream = FakeKinesis(ManualClock(), shards=2)
        stream.enforces = False  # its clock stands still
        for number in range(6):
            stream.put(f"key-{number}", f"record {number}")
        stream.split("shardId-000000000000")
        stream.put("key-0", pack([UserRecord(f"key-{number}", None, b"aggregated") for number in range(3)]))
        return OnFakeKinesis(stream)

    @pytest.fixture
    def expected(self, source: OnFakeKinesis) -> list[Row]:
        return [
            {
                "data": inner.data,
                "partition_key": inner.partition_key,
                "explicit_hash_key": None,
                "stream": "orders",
                "shard": shard.id,
                "sequence_number": str(record.number),
                "sub_sequence_number": sub,
                "timestamp": "2026-01-01T00:00:00Z",
            }
            for shard in source.stream.shards.values()
            for record in shard.records
            for sub, inner in enumerate(unpack(record.data) or [UserRecord(record.key, None, record.data)])
        ]
