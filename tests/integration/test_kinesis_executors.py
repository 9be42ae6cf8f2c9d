"""Ranges that Spark's Python workers read of an emulator: their client is their own, with secrets by reference."""

from __future__ import annotations

import json

import pytest

import penstock as ps
from integration.kinesis_streams import CLOCK, STEP, Stream
from penstock.connectors.kinesis.producer import OutgoingRecord
from penstock.connectors.kinesis.reader import KinesisReader, RangesBatch
from penstock.connectors.kinesis.shards import decode
from penstock.connectors.kinesis.source import Source
from penstock.interfaces.source import PlannedBatch, ReadLimit, SourceContext
from spark.job_kit import published

pytestmark = pytest.mark.slow


def credentials(folder):
    """Options with references to secrets, which the workers resolve."""
    names = ("aws_access_key_id", "aws_secret_access_key")
    for name in names:
        (folder / name).write_text("000000000000")
    return {name: ps.kinesis.file(str(folder / name)) for name in names}


def test_workers_read_each_record_once_over_a_split(server, spark, tmp_path) -> None:
    stream = Stream(server, 2, opens=False)
    source = Source(
        stream.name,
        region="us-east-1",
        endpoint_url=server.url,
        poll_every="100 milliseconds",
        read_in="executors",
        options=credentials(tmp_path),
    )

    def opened(position=None):
        context = SourceContext(uid="in", spark=spark, wall=CLOCK.wall)
        return KinesisReader(source, context, None if position is None else decode(position), threads=4)

    stream.add(40)
    stream.add(3, aggregate=True)
    STEP.wait(2)
    stream.split()
    stream.add(40)
    STEP.wait(2)
    stream.add(20)
    reader, total, quiet = opened(), sum(map(len, stream.put.values())), 0
    until = CLOCK.now() + 120_000_000
    while (len(stream.read) < total or quiet < 50) and CLOCK.now() < until:
        answer = reader.poll(now=CLOCK.now(), wall=CLOCK.wall(), limits=ReadLimit(rows=50))
        if not isinstance(answer, PlannedBatch):
            quiet += 1
            STEP.wait(0.02)
            continue
        assert isinstance(answer.plan, RangesBatch)
        frame = reader.frame(answer.plan).select("partition_key", "data", "sequence_number")
        rows = [tuple(row) for row in frame.collect()]
        assert [tuple(row) for row in reader.frame(answer.plan).select(*frame.columns).collect()] == rows
        assert answer.verify is not None
        answer.verify()
        stream.read += [(key, bytes(data)) for key, data, _ in rows]
        if quiet % 2:  # a start at the position of a checkpoint
            position = reader.position()
            reader.close()
            reader = opened(position)
    reader.close()
    stream.check_read()
    stream.client.delete_stream(StreamName=stream.name)


def test_a_job_whose_executors_read_writes_each_record_once(server, spark, tmp_path) -> None:
    stream, out = Stream(server, 3, opens=False), tmp_path / "out"
    options = credentials(tmp_path)

    @ps.pipeline("orders")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.kinesis.Source(
            stream.name, region="us-east-1", endpoint_url=server.url, read_in="executors", options=options
        )
        parsed = p.read("in", source).parse_json("data", "id LONG")
        parsed.select("id").write("out", ps.files.Sink(str(out), format="json"))

    written: list[int] = []
    for start in (0, 40):
        stream.putter.put(OutgoingRecord(f"k{n}", json.dumps({"id": n}).encode()) for n in range(start, start + 40))
        ps.Job(pipeline, state=tmp_path / "state", spark=spark).run(until="caught-up")
        written = sorted(row["id"] for row in published(out))
    assert written == list(range(80))
