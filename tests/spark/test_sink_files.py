from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.connectors import staging
from penstock.connectors.committers import committer
from penstock.connectors.files import sink
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import GraphError, InternalError, SinkIdentityConflict, StateIncompatible
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable, FileRef, Generation
from penstock.interfaces.sink import CommitContext, SinkContext
from window_harness import jobs_of, next_job

pytestmark = pytest.mark.spark
LOG = "abcdef0123456789"


class Disk(LocalFileSystem):
    """The local disk, with a root that the target is not below."""

    def __init__(self):
        super().__init__("/tmp/penstock-not-used")


class Crash(BaseException):
    pass


class Failpoints:
    """Names that were passed, and the one to crash at."""

    def __init__(self, crash_at=None, times=1):
        self.passed = []
        self.crash_at, self.times = crash_at, times

    def __call__(self, name):
        self.passed.append(name)
        if name == self.crash_at:
            self.times -= 1
            if self.times == 0:
                raise Crash


class Step:
    """A sink step as the runtime drives it."""

    def __init__(self, spark, sink, sql_schema, generation=7, uid="out", **context):
        self.spark = spark
        self.frame = spark.sql(f"SELECT * FROM VALUES {sql_schema}")
        sink.check(self.frame.schema)
        self.writer = sink.writer(
            SinkContext(
                uid=uid,
                spark=spark,
                schema=self.frame.schema,
                log_id=LOG,
                job="job",
                generation=Generation(generation),
                filesystem=Disk(),
                staging="unused",
                cores=2,
                **context,
            )
        )
        self.sequence = 0

    def write(self, where="true"):
        self.sequence += 1
        return self.writer.write(Batch(frame=self.frame.where(where), sequence=self.sequence))

    def checkpoint(self, number):
        made = self.writer.prepare(CheckpointId(number)).materialise()
        return [through_json(item) for item in made]


def through_json(item):
    return replace(item, detail=json.loads(json.dumps(item.detail)))


def commit(item, failpoint=lambda _name: None):
    return committer(item, CommitContext(filesystem=Disk(), failpoint=failpoint)).commit(item)


def void(item):
    return committer(item, CommitContext(filesystem=Disk())).void(item)


def visible(folder):
    below = [path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file()]
    return sorted(str(path) for path in below if not str(path).startswith("."))


def waiting(folder):
    return [str(p) for p in Path(folder, ".penstock").rglob("*") if p.is_file() and not p.name.endswith(".crc")]


ROWS = "(1, 'ü', true), (2, NULL, false), (3, 'x\ty', NULL) AS t(id, name, flag)"


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_each_format_comes_back_as_it_was(spark, tmp_path, form):
    out = str(tmp_path / "out [1]")
    step = Step(spark, sink.Sink(out, format=form), ROWS)
    assert step.write() == 3
    assert step.write("id = 1") == 1
    assert visible(out) == []
    (item,) = step.checkpoint(5)
    assert visible(out) == []
    assert commit(item) is CommitOutcome.DONE
    (name,) = visible(out)
    assert name.startswith("part-abcdef01-out-5-7-00.")
    assert name.endswith(form)
    read = spark.read.schema(step.frame.schema).format(form).option("__globPaths__", "false").load(out)
    expected = [*step.frame.collect(), *step.frame.where("id = 1").collect()]
    assert sorted(read.collect(), key=str) == sorted(expected, key=str)
    assert waiting(out) == []


def test_text_writes_its_one_column(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path), format="text", options={"compression": "gzip"}), "('a'), ('b') AS t(v)")
    step.write()
    (item,) = step.checkpoint(1)
    commit(item)
    assert visible(tmp_path) == ["part-abcdef01-out-1-7-00.txt.gz"]
    assert sorted(row[0] for row in spark.read.text(str(tmp_path)).collect()) == ["a", "b"]


def test_a_partitioned_sink_makes_one_file_a_value_however_many_batches(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path), partition_by="k"), "(1, 'a b'), (2, 'c'), (3, NULL) AS t(id, k)")
    for _ in range(4):
        step.write()
    (item,) = step.checkpoint(1)
    assert commit(item) is CommitOutcome.DONE
    assert [name.rpartition("/")[0] for name in visible(tmp_path)] == ["k=__HIVE_DEFAULT_PARTITION__", "k=a b", "k=c"]
    read = spark.read.parquet(str(tmp_path)).groupBy("k", "id").count().collect()
    assert sorted(map(tuple, read), key=str) == sorted([("a b", 1, 4), ("c", 2, 4), (None, 3, 4)], key=str)


def test_a_partition_column_may_begin_with_an_underscore(spark, tmp_path):
    step = Step(
        spark, sink.Sink(str(tmp_path), format="json", partition_by="_day"), "(1, 'a'), (2, 'b') AS t(id, _day)"
    )
    assert step.write() == 2
    (item,) = step.checkpoint(1)
    assert commit(item) is CommitOutcome.DONE
    assert [name.rpartition("/")[0] for name in visible(tmp_path)] == ["_day=a", "_day=b"]
    read = spark.read.json(str(tmp_path))
    assert sorted((row["id"], row["_day"]) for row in read.collect()) == [(1, "a"), (2, "b")]


def test_rows_of_which_no_file_came_are_not_removed(spark, tmp_path, monkeypatch):
    step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS)
    step.write()
    with monkeypatch.context() as patched:
        patched.setattr(staging, "write", lambda *_: None)
        with pytest.raises(InternalError, match="3 rows staged"):
            step.checkpoint(1)
    (item,) = step.checkpoint(2)
    commit(item)
    assert spark.read.json(str(tmp_path)).count() == 3


def test_a_damaged_staged_file_fails_whatever_the_session_ignores(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS, replays=False)
    step.write()
    staged = waiting(tmp_path)
    assert staged
    for path in staged:
        Path(path).write_bytes(b"PAR1 damaged PAR1")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Exception, match=r"(?i)parquet"):
            step.checkpoint(1)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_two_sinks_in_one_directory_do_not_meet(spark, tmp_path):
    items = []
    for uid in ("one", "two"):
        step = Step(spark, sink.Sink(str(tmp_path), format="json"), "(1) AS t(id)", uid=uid)
        step.write()
        items += step.checkpoint(1)
    assert [commit(item) for item in items] == [CommitOutcome.DONE] * 2
    assert visible(tmp_path) == ["part-abcdef01-one-1-7-00.json", "part-abcdef01-two-1-7-00.json"]


def test_a_batch_is_one_job_and_a_checkpoint_is_one_in_its_slot(spark, tmp_path):
    entered = []

    class Slot:
        def __enter__(self):
            entered.append(True)
            spark.sparkContext.setJobGroup("slot", "")

        def __exit__(self, *_):
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)

    step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS, background=Slot)
    since = next_job(spark)
    for number in range(3):
        spark.sparkContext.setJobGroup(f"sink-{number}", "")
        step.write()
        assert jobs_of(spark, f"sink-{number}", since=since) == 1
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    (item,) = step.checkpoint(1)
    assert len(item.files) == 1
    assert entered == [True]
    assert jobs_of(spark, "slot", since=since) == 1


def test_a_single_staged_parquet_file_is_published_as_it_is(spark, tmp_path):
    used = []
    step = Step(spark, sink.Sink(str(tmp_path)), "(1) AS t(id)", background=lambda: used.append(True), replays=False)
    step.frame = step.frame.coalesce(1)
    step.write()
    (item,) = step.checkpoint(1)
    assert used == []
    assert commit(item) is CommitOutcome.DONE
    assert spark.read.parquet(str(tmp_path)).count() == 1
    assert waiting(tmp_path) == []


def test_no_rows_no_file(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path)), ROWS)
    assert step.write("id > 100") == 0
    assert step.write("false") == 0
    assert step.checkpoint(1) == []
    assert waiting(tmp_path) == []


def test_measures_are_settled_after_the_write(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path)), ROWS)
    measure = ObservedMetrics(lambda: {"rows": 3})
    step.writer.write(Batch(frame=step.frame, sequence=1, metrics={"rows": measure}))
    assert measure.value == {"rows": 3}


@pytest.fixture
def half(spark, tmp_path):
    """A committable of two files, prepared."""
    step = Step(
        spark, sink.Sink(str(tmp_path / "out"), format="json", partition_by="k"), "(1, 'a'), (2, 'b') AS t(id, k)"
    )
    step.write()
    (item,) = step.checkpoint(3)
    assert len(item.files) == 2
    return item


def test_committing_twice_is_already_done(half):
    points = Failpoints()
    assert commit(half, points) is CommitOutcome.DONE
    assert points.passed == ["sink.files.before_move", "sink.files.moved"] * 2
    assert commit(half) is CommitOutcome.ALREADY_DONE


def test_a_reader_may_take_the_files_away(half):
    commit(half)
    for final in half.detail["moves"].values():
        os.unlink(final)
    assert commit(half) is CommitOutcome.ALREADY_DONE
    assert visible(half.target) == []
    assert void(half) is CommitOutcome.ALREADY_DONE


@pytest.mark.parametrize("finish", [commit, void])
def test_a_half_published_epoch_is_completed_never_voided(half, finish):
    with pytest.raises(Crash):
        commit(half, Failpoints("sink.files.moved"))
    assert len(visible(half.target)) == 1
    assert finish(half) is (CommitOutcome.DONE if finish is commit else CommitOutcome.ALREADY_DONE)
    assert len(visible(half.target)) == 2


def test_a_voided_epoch_is_never_published(half):
    assert void(half) is CommitOutcome.DONE
    assert not any(Path(ref.path).exists() for ref in half.files)
    assert commit(half) is CommitOutcome.ALREADY_DONE
    assert void(half) is CommitOutcome.DONE
    assert visible(half.target) == []


def test_a_void_that_comes_between_wins_against_a_paused_commit(half):
    def interrupt(name):
        if name == "sink.files.before_move":
            void(half)

    assert commit(half, interrupt) is CommitOutcome.ALREADY_DONE
    assert visible(half.target) == []


def test_a_void_that_stopped_half_way_is_still_a_void(half):
    first, second = half.files
    shutil.move(first.path, first.path + ".voided")
    assert commit(half) is CommitOutcome.ALREADY_DONE
    assert Path(second.path).exists()
    assert void(half) is CommitOutcome.DONE
    assert not Path(second.path).exists()


def test_a_foreign_file_under_a_final_name_is_not_overwritten(half):
    final = Path(half.detail["moves"][half.files[0].path])
    final.parent.mkdir(parents=True)
    final.write_text("foreign")
    with pytest.raises(SinkIdentityConflict, match="Nothing was overwritten"):
        commit(half)
    assert final.read_text() == "foreign"
    shutil.copy(half.files[0].path, final)
    assert commit(half) is CommitOutcome.DONE
    assert not Path(half.files[0].path).exists()


def test_an_aborted_checkpoint_and_the_next_carry_both(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS)
    step.write("id = 1")
    aborted = step.checkpoint(1)
    step.write("id = 2")
    both = [*aborted, *step.checkpoint(2)]
    assert [commit(item) for item in both] == [CommitOutcome.DONE] * 2
    assert visible(tmp_path) == ["part-abcdef01-out-1-7-00.json", "part-abcdef01-out-2-7-00.json"]
    assert sorted(row.id for row in spark.read.json(str(tmp_path)).collect()) == [1, 2]


def test_what_could_not_be_materialised_goes_into_the_next_checkpoint(spark, tmp_path):
    def no_slot():
        raise TimeoutError

    slots = [no_slot]

    def background():
        return slots.pop()() if slots else Free()

    class Free:
        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS, background=background)
    step.write("id = 1")
    with pytest.raises(TimeoutError):
        step.checkpoint(1)
    step.write("id = 2")
    (item,) = step.checkpoint(2)
    commit(item)
    assert sorted(row.id for row in spark.read.json(str(tmp_path)).collect()) == [1, 2]


def test_names_of_generations_do_not_meet(spark, tmp_path):
    items = []
    for generation in (7, 8):
        step = Step(spark, sink.Sink(str(tmp_path), format="json"), ROWS, generation=generation)
        step.write()
        items += step.checkpoint(1)
    assert {commit(item) for item in items} == {CommitOutcome.DONE}
    assert len(visible(tmp_path)) == 2


def test_bigger_epochs_make_more_files(spark, tmp_path):
    step = Step(spark, sink.Sink(str(tmp_path), target_file_bytes=2000), "(1) AS t(id)")
    step.frame = spark.range(0, 3000, 1, 3)
    step.writer.context = replace(step.writer.context, schema=step.frame.schema)
    step.write()
    (item,) = step.checkpoint(1)
    assert len(item.files) > 1
    commit(item)
    assert spark.read.parquet(str(tmp_path)).distinct().count() == 3000


@pytest.mark.parametrize(("large", "are_written_again"), [(10_000_000, True), (10, False)])
def test_large_staged_files_are_not_written_again(spark, tmp_path, monkeypatch, large, are_written_again):
    monkeypatch.setattr(sink, "_LARGE_FILE", large)
    step = Step(spark, sink.Sink(str(tmp_path)), "(1) AS t(id)", replays=False)
    step.frame = spark.range(0, 3000, 1, 3)
    step.writer.context = replace(step.writer.context, schema=step.frame.schema)
    step.write()
    (item,) = step.checkpoint(1)
    assert any("/files-" in file.path for file in item.files) == are_written_again
    commit(item)
    assert spark.read.parquet(str(tmp_path)).distinct().count() == 3000


@pytest.mark.parametrize(
    ("sink", "columns", "told"),
    [
        (lambda: sink.Sink("o", format="csv"), "array(1) AS a", "csv cannot hold"),
        (lambda: sink.Sink("o", format="text"), "1 AS a", "one STRING"),
        (lambda: sink.Sink("o", partition_by="b"), "1 AS a", "partition_by: Column 'b' does not exist"),
        (lambda: sink.Sink("o", partition_by="a"), "1 AS a", "nothing is left"),
        (lambda: sink.Sink("o", partition_by=".b"), "1 AS a, 2 AS `.b`", "hidden folders"),
        (lambda: sink.Sink("o"), "NULL AS a", "Cast or drop"),
        (lambda: sink.Sink("o"), "1 AS a, 2 AS A", "twice"),
        (lambda: sink.Sink("o", format="xml"), "1 AS a", "not one of"),
        (lambda: sink.Sink("s3://o"), "1 AS a", "rename"),
    ],
)
def test_what_cannot_be_written_is_refused(spark, sink, columns, told):
    with pytest.raises(GraphError, match=told):
        sink().check(spark.sql(f"SELECT {columns}").schema)


def test_an_unknown_kind_is_refused_by_name():
    odd = Committable(
        uid="u",
        kind="files/1",
        checkpoint=CheckpointId(1),
        target="/t",
        files=(FileRef(path="/a/b", length=1, sha256=""),),
        detail={},
    )
    with pytest.raises(StateIncompatible, match=r"'kafka/9'.*files/1"):
        committer(replace(odd, kind="kafka/9"), CommitContext(filesystem=Disk()))
    with pytest.raises(StateIncompatible, match="Another version"):
        commit(odd)
