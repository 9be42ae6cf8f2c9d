"""An epoch of a sink in blocks: what is published, what is lost with a block, what has no room (rule S9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import penstock as ps
from crash.driver import LIGHT
from penstock.clock import MonotonicTime
from penstock.connectors.epochs import MAX_KEPT_TIME
from penstock.connectors.files import sink
from penstock.connectors.for_each import ForEachSink
from penstock.connectors.staging import staged_table
from penstock.elements import Batch
from penstock.errors import ConnectorError, KeptOutputLost
from penstock.facts import BatchDone, JobStarted, Restarting
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, Generation
from penstock.interfaces.sink import BlockBudget, SinkContext
from penstock.spark.kept_output import RowKeeper
from spark.job_kit import Watch, drop, published
from spark.test_lost_block_job import lose
from spark.test_sink_files import ROWS, Step, commit, visible, waiting
from window_harness import persistent

pytestmark = pytest.mark.spark


def staged_files(folder: Path) -> list[str]:
    return [path for path in waiting(folder) if "/files-" not in path]


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_what_is_published_from_blocks_is_what_is_published_from_files(spark, tmp_path, form):
    found = []
    for replays in (True, False):
        out = tmp_path / str(replays)
        step = Step(spark, sink.Sink(out, format=form), ROWS, replays=replays)
        assert [step.write(), step.write("id = 1"), step.write("false")] == [3, 1, 0]
        assert bool(staged_files(out)) is not replays
        (item,) = step.checkpoint(5)
        commit(item)
        rows = spark.read.schema(step.frame.schema).format(form).load(str(out)).collect()
        found.append((visible(out), sorted(rows, key=str)))
        assert waiting(out) == []
        step.writer.close()
    assert found[0] == found[1]


def test_where_a_block_may_have_two_copies_batches_are_staged_in_files(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(RowKeeper, "keeps_one_copy", lambda spark: False)  # as on a cluster, which may speculate
    step = Step(spark, sink.Sink(tmp_path, format="json"), ROWS)
    before = persistent(spark)
    step.write()
    assert staged_files(tmp_path)
    assert persistent(spark) <= before


def test_S9_blocks_stay_until_the_manifest_is_in_the_log_and_no_longer(spark, tmp_path):
    before = persistent(spark)
    step = Step(spark, sink.Sink(tmp_path, format="json"), ROWS)
    step.write()
    aborted = step.checkpoint(1)
    step.write("id = 2")
    items = [*aborted, *step.checkpoint(2)]
    step.write("id = 3")
    assert len(persistent(spark) - before) == 3
    step.writer.completed(CheckpointId(2))
    assert len(persistent(spark) - before) == 1
    for item in items:
        commit(item)
    step.writer.close()
    assert persistent(spark) <= before
    assert sorted(row.id for row in spark.read.json(str(tmp_path)).collect()) == [1, 2, 2, 3]


def test_S9_a_lost_block_is_told_and_no_file_lacks_its_rows(spark, tmp_path):
    before = persistent(spark)
    step = Step(spark, sink.Sink(tmp_path, format="json"), ROWS)
    step.write()
    step.write()
    lose(spark, frozenset([max(persistent(spark) - before)]))
    with pytest.raises(KeptOutputLost, match="read again from the last checkpoint"):
        step.checkpoint(1)
    assert waiting(tmp_path) == []
    assert KeptOutputLost.retry
    assert not KeptOutputLost.is_counted
    step.writer.close()


def test_a_batch_that_read_what_was_not_planned_leaves_nothing(spark, tmp_path):
    def changed():
        msg = "changed"
        raise ConnectorError(msg)

    before = persistent(spark)
    step = Step(spark, sink.Sink(tmp_path, format="json"), ROWS)
    with pytest.raises(ConnectorError):
        step.writer.write(Batch(frame=step.frame, sequence=1, verify=changed))
    assert persistent(spark) <= before
    assert step.checkpoint(1) == []


def test_above_the_bound_batches_are_staged_in_files_also_while_checkpoints_fail(spark, tmp_path):
    kept = BlockBudget(1)
    step = Step(spark, sink.Sink(tmp_path, format="json"), ROWS, kept=kept)
    step.write("id = 1")  # how large it is shows only afterwards
    step.write("id = 2")
    (staged,) = staged_files(tmp_path)
    assert pq.read_table(staged, partitioning=None)["id"].to_pylist() == [2]
    items = step.checkpoint(1)  # and is aborted: the rows are in files, and the blocks still count
    step.write("id = 3")
    assert len(staged_files(tmp_path)) == 1
    items += step.checkpoint(2)
    assert kept.used > 0
    step.writer.completed(CheckpointId(2))
    assert kept.used == 0
    for item in items:
        commit(item)
    assert sorted(row.id for row in spark.read.json(str(tmp_path)).collect()) == [1, 2, 3]
    step.writer.close()


def test_large_staged_files_are_published_as_they_are_beside_one_from_blocks(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(sink, "_LARGE_FILE", 10)
    step = Step(spark, sink.Sink(tmp_path), "(1L) AS t(id)", kept=BlockBudget(1))
    step.write()
    step.frame = spark.range(0, 3000, 1, 3)
    step.write()
    (item,) = step.checkpoint(1)
    assert sorted("/files-" in file.path for file in item.files) == [False, False, False, True]
    commit(item)
    assert spark.read.parquet(str(tmp_path)).count() == 3001
    step.writer.close()


class Functions:
    """A sink whose committer reads staged files, as the runtime drives its writer."""

    def __init__(self, spark, folder, **context):
        self.spark, self.filesystem = spark, LocalFileSystem(folder)
        self.frame = spark.range(0, 6, 1, 3)
        self.writer = ForEachSink(lambda frame, epoch: None).writer(
            SinkContext(
                uid="out",
                spark=spark,
                schema=self.frame.schema,
                log_id="log",
                job="job",
                generation=Generation(1),
                filesystem=self.filesystem,
                staging="staged/out/1",
                cores=2,
                **context,
            )
        )

    def write(self, first):
        return self.writer.write(Batch(frame=self.spark.range(first, first + 6, 1, 3), sequence=1))

    def rows(self, checkpoint):
        (item,) = self.writer.prepare(CheckpointId(checkpoint)).materialise()
        return staged_table(item, self.filesystem)["id"].to_pylist(), len(item.files)


def test_rows_stay_in_their_order_from_blocks_and_from_files(spark, tmp_path):
    kept = BlockBudget()
    step = Functions(spark, tmp_path, kept=kept)
    step.write(0)
    step.write(6)
    kept.take(2**40)  # no room for a while
    step.write(12)
    kept.give_back(2**40)
    step.write(18)
    assert step.rows(1) == (list(range(24)), 1 + 3 + 1)
    step.writer.close()


def test_an_epoch_that_is_open_for_long_is_moved_to_files(spark, tmp_path):
    times = [0, 0, MAX_KEPT_TIME + 1, MAX_KEPT_TIME + 1]
    before = persistent(spark)
    step = Functions(spark, tmp_path, now=lambda: MonotonicTime(times.pop(0)))
    step.write(0)
    assert not step.filesystem.list("staged")
    lost = persistent(spark) - before
    step.write(6)
    assert step.filesystem.list("staged")
    assert persistent(spark) >= lost  # until the manifest
    lose(spark, lost)
    assert step.rows(1)[0] == list(range(12))
    step.writer.close()


def test_a_lost_block_ends_the_attempt_and_does_not_use_up_the_restarts(spark, tmp_path):
    watch = Watch()

    @ps.pipeline("blocks")
    def blocks(p: ps.Pipeline) -> None:
        p.read("in", ps.files.Source(tmp_path / "in", schema="n LONG")).write(
            "out", ps.files.Sink(tmp_path / "out", format="json")
        )

    job = ps.Job(  # "rate" gives up at the second failure in a minute
        blocks, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1h", restart="rate"
    )
    (tmp_path / "in").mkdir()
    job.start()
    before = persistent(spark)
    drop(tmp_path / "in", "1.json", [{"n": 1}])
    for number in (1, 2):
        watch.wait_for(JobStarted, number)
        watch.wait_for(BatchDone, number, task="out")
        assert lose(spark, persistent(spark) - before) > 0
        with pytest.raises(ps.PenstockError):
            job.checkpoint()
        assert "keeps output" in watch.wait_for(Restarting, number).cause
    watch.wait_for(BatchDone, 3, task="out")
    assert job.stop()
    assert published(tmp_path / "out") == [{"n": 1}]


# ---- second attempts of tasks ----------------------------------------------------------------------------------------

ATTEMPTS = """\
import json, random, sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.connectors.files import sink
from penstock.connectors.committers import committer
from penstock.elements import Batch
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, Generation
from penstock.interfaces.sink import CommitContext, SinkContext
from penstock.spark.jvm import make_spark_home

make_spark_home()
master, out, *settings = sys.argv[1:]
here = str(Path.cwd())
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()


def at_random(tables):
    context = TaskContext.get()
    Path(here, f"ran-{context.partitionId()}-{context.attemptNumber()}").touch()
    for table in tables:
        values = table.to_pydict()["id"]
        yield table.from_pydict({"id": values, "value": [random.randrange(10**9) for _ in values]})
    if context.attemptNumber() == 0 and context.partitionId() == 1:
        raise OSError("the first attempt ends here")


frame = spark.range(0, 20, 1, 2).mapInArrow(at_random, "id LONG, value LONG")
filesystem = LocalFileSystem("/tmp/penstock-not-used")
target = sink.Sink(out, format="json", partition_by="id")
writer = target.writer(
    SinkContext(
        uid="out", spark=spark, schema=frame.schema, log_id="abcdef0123", job="job", generation=Generation(1),
        filesystem=filesystem, staging="unused", cores=2,
    )
)
rows = writer.write(Batch(frame=frame, sequence=1))
in_files = any(Path(out, ".penstock").rglob("*.parquet"))
epoch = writer._epochs.close_epoch()
read = []
if not in_files:
    read = [sorted(map(list, writer.kept_frame(epoch).collect())) for _ in range(2)]
writer._epochs.reopen(epoch)
(item,) = writer.prepare(CheckpointId(1)).materialise()
committer(item, CommitContext(filesystem=filesystem)).commit(item)
found = sorted([row.id, row.value] for row in spark.read.schema("value LONG, id LONG").json(out).collect())
ran = sorted(path.name for path in Path(here).glob("ran-*"))
print(json.dumps({"rows": rows, "in_files": in_files, "read": read, "found": found, "ran": ran}))
spark.stop()
"""


def second_attempts(folder: Path, master: str, *settings: str) -> dict[str, object]:
    (folder / "attempts.py").write_text(ATTEMPTS)
    done = subprocess.run(
        [sys.executable, "attempts.py", master, "out", *settings],
        cwd=folder,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": LIGHT},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {"ran-1-0", "ran-1-1"} <= set(seen["ran"])
    return seen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_function_with_random_output_all_readers_see_the_attempt_that_is_in_the_block(tmp_path):
    seen = second_attempts(tmp_path, "local[2,4]")
    assert (seen["rows"], seen["in_files"]) == (20, False)
    assert seen["read"] == [seen["found"], seen["found"]]
    assert [id for id, _ in seen["found"]] == list(range(20))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_cluster_that_may_speculate_a_batch_is_staged_in_files(tmp_path):
    # A second attempt is forced by a failure: Spark never speculates on the host of the first, and there is one host.
    seen = second_attempts(tmp_path, "local-cluster[2,1,1024]", "spark.speculation=true", "spark.executor.memory=512m")
    assert (seen["rows"], seen["in_files"]) == (20, True)
    assert [id for id, _ in seen["found"]] == list(range(20))
