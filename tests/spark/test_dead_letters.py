"""Dead letters of whole jobs: kept with where they came from, replayed by fixed code exactly-once, late ones kept."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import penstock as ps
from penstock.admin.dead_letter_replay import drop, plan_drop, replay
from penstock.admin.dead_letters import dead_letter_queue, letters_of, select_by_sql
from penstock.admin.savepoints import rewind
from penstock.clock import WallTime
from penstock.control.client import JobDirectory
from penstock.dead_letters.replay import letters_frame
from penstock.dead_letters.store import FOLDER, RAW_ROW, LetterRange, Replay
from penstock.errors import RequestRefused, StorageFailed
from penstock.facts import RowsRead
from penstock.failpoints import armed
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId
from spark.job_kit import Jobs, Watch, published
from spark.job_kit import drop as put
from spark.json_source import Bytes, DecodedBytes

pytestmark = pytest.mark.spark

V1 = "id LONG, amount LONG"
V2 = "id LONG, amount DOUBLE"
POISON = ['{"id": 3, "amount": 3.5}', '{"id": 5, "amount": 5.25}']


class Shop:
    """Orders as lines of files; the first version of the code takes no fractions, the second does."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.watch = Watch()

    def run(self, schema: str = V1, *, keeps: bool = True, **settings: object) -> None:
        @ps.pipeline("orders")
        def orders(p: ps.Pipeline) -> None:
            source = ps.files.Source(self.folder / "in", format="text", with_file=True)
            parsed, bad = p.read("lines", source).parse_json("value", schema, on_error="split")
            parsed.select("id", "CAST(amount AS DOUBLE) AS amount").write("out", self._sink("out"))
            if keeps:
                bad.dead_letter("bad-lines")
            else:
                bad.write("bad-elsewhere", self._sink("bad"))

        settings = {"checkpoint_every": "1 hour", "restart": "none", "listener": self.watch, **settings}
        ps.Job(orders, state=self.folder / "state", spark=self.spark, **settings).run(until="caught-up")

    def _sink(self, name: str) -> ps.files.Sink:
        return ps.files.Sink(self.folder / name, format="json")

    def put(self, name: str, *lines: str) -> None:
        put(self.folder / "in", name, lines)

    @property
    def job(self) -> JobDirectory:
        return JobDirectory(self.folder / "state", "orders")

    def rows(self) -> list[tuple[int, float]]:
        return sorted((row["id"], row["amount"]) for row in published(self.folder / "out"))

    def oracle(self) -> list[tuple[int, float]]:
        """What anybody would make of all lines that were ever put there."""
        lines = [json.loads(line) for path in (self.folder / "in").iterdir() for line in path.read_text().splitlines()]
        return sorted((line["id"], float(line["amount"])) for line in lines)

    def letters(self):
        return letters_of(dead_letter_queue(self.job, None), limit=100)[0]


@pytest.fixture
def shop(spark, tmp_path):
    made = Shop(spark, tmp_path)
    made.put("1.txt", '{"id": 1, "amount": 1}', '{"id": 2, "amount": 2}', POISON[0], '{"id": 4, "amount": 4}')
    made.put("2.txt", POISON[1], '{"id": 6, "amount": 6}')
    return made


def test_poison_in_the_middle_is_kept_with_its_file_and_fixed_code_replays_it(shop):
    shop.run()

    assert [row[0] for row in shop.rows()] == [1, 2, 4, 6], "the others went on"
    letters = shop.letters()
    assert sorted(letter.raw for letter in letters) == POISON
    assert {letter.place["file"] for letter in letters} == {str(shop.folder / "in" / f"{n}.txt") for n in (1, 2)}
    assert {(letter.cause, letter.step, letter.source, letter.attempts) for letter in letters} == {
        ("decode", "parse_json value", "lines", 1)
    }
    assert all(letter.error.startswith("field 'amount' is not of its declared type ") for letter in letters)

    done = replay(shop.job, None)
    assert (done.uid, done.source, done.rows) == ("bad-lines", "lines", 2)
    assert dead_letter_queue(shop.job, None).waiting == 2
    shop.run(V2)

    assert shop.rows() == shop.oracle()
    place = dead_letter_queue(shop.job, None)
    assert (place.waiting, place.read) == (0, 1)
    assert [letter.replayed for letter in shop.letters()] == [1, 1], "they stay where they are, and say so"


def test_the_files_are_plain_parquet_that_any_tool_reads(shop):
    shop.run()

    found = duckdb.sql(f"""
        SELECT cause, place.file, "record".value, no_replay
        FROM read_parquet('{shop.folder}/state/orders/deadletters/bad-lines/*.parquet') ORDER BY 3
    """).fetchall()
    files = [str(shop.folder / "in" / name) for name in ("1.txt", "2.txt")]
    assert found == [("decode", file, line, None) for file, line in zip(files, POISON, strict=True)]


def test_a_second_replay_names_no_letter_again_unless_told_to(shop):
    shop.run()
    assert replay(shop.job, "bad-lines").rows == 2

    again = replay(shop.job, "bad-lines")
    assert (again.rows, again.replays, again.left) == (0, (), 2)
    shop.run(V2)
    assert shop.rows() == shop.oracle()

    assert replay(shop.job, "bad-lines").rows == 0, "nor once it was read"
    shop.run(V2)
    assert shop.rows() == shop.oracle()
    assert replay(shop.job, "bad-lines", again=True).rows == 2
    shop.run(V2)
    assert len(shop.rows()) == len(shop.oracle()) + 2, "whoever asks for it gets them twice"


@pytest.mark.parametrize("place", ["checkpoint.manifest.before", "sink.commit.before"])
def test_a_crash_between_the_replay_and_its_checkpoint_loses_and_doubles_nothing(shop, place):
    shop.run()
    replay(shop.job, None)
    with armed(place, "error:ENOSPC"), pytest.raises(StorageFailed):
        shop.run(V2)
    shop.run(V2)
    assert shop.rows() == shop.oracle()


def test_rows_that_fail_again_are_letters_again_with_their_attempts(shop):
    shop.run()
    replay(shop.job, None)
    shop.run()  # nobody has changed the code
    assert sorted((letter.raw, letter.attempts) for letter in shop.letters()) == sorted(
        [(line, attempt) for line in POISON for attempt in (1, 2)]
    )
    assert replay(shop.job, None).rows == 2, "only those that were not replayed yet"
    shop.run(V2)
    assert shop.rows() == shop.oracle()


def test_a_choice_by_sql_replays_some(shop):
    shop.run()
    where = "CAST(record.value AS STRING) LIKE '%5.25%' AND place.file LIKE '%2.txt' AND checkpoint >= 0"
    done = replay(shop.job, None, choose=lambda place: select_by_sql(shop.spark, place, where))
    assert done.rows == 1
    shop.run(V2)
    assert [row[0] for row in shop.rows()] == [1, 2, 4, 5, 6]
    with pytest.raises(RequestRefused, match="No dead letter of 'bad-lines' is among those"):
        replay(shop.job, None, choose=lambda place: select_by_sql(shop.spark, place, "step = 'none'"))


def test_letters_of_several_files_come_once_though_their_folder_looks_like_a_pattern(spark, tmp_path):
    filesystem = LocalFileSystem(tmp_path / "[a]{b}")
    for name in ("1.parquet", "2.parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({RAW_ROW: [{"value": name}]}), sink)
        filesystem.create(f"{FOLDER}/bad/{name}", sink.getvalue().to_pybytes())
    letters = tuple(LetterRange(file=name, ranges=((0, 1),)) for name in ("1.parquet", "2.parquet"))
    again = Replay(
        number=1, command="c", uid="bad", source="in", after=CheckpointId(0), at=WallTime(0), by="me", letters=letters
    )
    frame = letters_frame(spark, filesystem, again, StructType().add("value", "string"))
    assert sorted(row.value for row in frame.collect()) == ["1.parquet", "2.parquet"]


def test_new_rows_and_a_replay_meet_in_one_run(shop):
    shop.run()
    replay(shop.job, None)
    shop.put("3.txt", '{"id": 7, "amount": 7}')
    shop.run(V2)
    assert shop.rows() == shop.oracle()
    assert sum(fact.rows for fact in shop.watch.of(RowsRead)) == 6 + 1 + 2


def test_a_running_job_reads_a_replay_without_a_restart(shop):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        source = ps.files.Source(shop.folder / "in", format="text", with_file=True)
        parsed, bad = p.read("lines", source).parse_json("value", V2, on_error="split")
        parsed.write("out", ps.files.Sink(shop.folder / "out", format="json"))
        bad.dead_letter("bad-lines")

    shop.run()
    shop.watch.facts.clear()
    job = ps.Job(orders, state=shop.folder / "state", spark=shop.spark, listener=shop.watch)
    job.start()
    try:
        shop.put("3.txt", '{"id": 7, "amount": 7}')
        shop.watch.wait_for(RowsRead, rows=1)
        assert replay(shop.job, None).rows == 2
        shop.watch.wait_for(RowsRead, rows=2)
    finally:
        job.stop()
    assert shop.rows() == shop.oracle()


def test_dead_letters_that_go_and_come_back_are_not_read_twice(shop):
    shop.run()
    replay(shop.job, None)
    shop.run(V2)
    shop.put("3.txt", '{"id": 7, "amount": 7}')
    shop.run(V2, keeps=False, allow_non_restored_state=True)
    shop.run(V2, allow_non_restored_state=True)
    assert shop.rows() == shop.oracle()


def test_a_rewind_behind_the_letters_reads_their_rows_again_and_passes_the_replay_over(shop):
    shop.put("0.txt", '{"id": 0, "amount": 0}')
    hidden = [shop.folder / "in" / f"{n}.txt" for n in (1, 2)]
    for path in hidden:
        path.rename(path.with_name(f".{path.name}"))
    shop.run()
    before = shop.job.read().restore_point.checkpoint
    for path in hidden:
        path.with_name(f".{path.name}").rename(path)
    shop.run()
    replay(shop.job, None)
    shop.run(V2)
    assert shop.rows() == shop.oracle()

    rewind(shop.job, before)
    place = dead_letter_queue(shop.job, None)
    assert [file.is_live for file in place.files] == [False] * len(place.files)
    with pytest.raises(RequestRefused, match="a rewind has undone"):
        replay(shop.job, None)
    shop.run(V2)
    once, all_of_it = shop.oracle(), shop.rows()
    assert all_of_it == sorted([*once, *(row for row in once if row[0] != 0)]), "published again once, as by any rewind"


def test_a_drop_leaves_what_a_replay_needs_and_takes_the_rest(shop):
    shop.run()
    far = 4_000_000_000_000_000
    replay(shop.job, None)
    plan = plan_drop(shop.job.read(), dead_letter_queue(shop.job, None), far)
    assert (plan.files, len(plan.kept)) == ((), 1), "it is yet to be read"
    shop.run(V2, retained=1)
    shop.put("3.txt", '{"id": 7, "amount": 7}')
    shop.run(V2, retained=1)
    plan = plan_drop(shop.job.read(), dead_letter_queue(shop.job, None), far)
    assert (len(plan.files), plan.kept) == (1, ())
    drop(shop.job, plan)
    assert list((shop.folder / "state" / "orders" / "deadletters" / "bad-lines").glob("*.parquet")) == []
    shop.put("4.txt", '{"id": 8, "amount": 8}')
    shop.run(V2)
    assert shop.rows() == shop.oracle()


def test_lines_say_their_file_whatever_its_name(spark, tmp_path):
    names = ["a +%41 ü.txt", "12:00 +%41.txt"]  # Spark cannot open the second, so a worker reads it
    for name in names:
        put(tmp_path / "in", name, ["x"])
    out = ps.memory.Sink()

    @ps.pipeline("named")
    def pipeline(p: ps.Pipeline) -> None:
        p.read("in", ps.files.Source(tmp_path / "in", format="text", with_file=True, max_files_per_batch=1)).write(
            "out", out
        )

    ps.Job(pipeline, state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert sorted(row["_file"] for row in out.rows) == sorted(str(tmp_path / "in" / name) for name in names)


def test_where_nothing_is_bad_nothing_runs_for_letters_and_no_file_is_there(spark, tmp_path):
    shop = Shop(spark, tmp_path)
    shop.put("1.txt", '{"id": 1, "amount": 1}')
    jobs = Jobs(spark)
    shop.run()
    assert jobs.of("bad-lines") == 0
    assert list((tmp_path / "state" / "orders" / "deadletters").rglob("*.parquet")) == []


# ------------------------------------------------------------------------------- a source with partitions, decoded

GOOD = tuple(f'{{"id": {n}, "at": "2026-01-01T00:00:{n:02}Z"}}'.encode() for n in range(6))
BATCHES = (GOOD[:3], (b'{"id": "six", "at": "2026-01-01T00:00:02Z"}', b"\xff\x00", None), GOOD[3:])


@pytest.mark.parametrize("where", ["plain", "driver", "silent", "workers"])
def test_a_source_that_decodes_reads_letters_again_to_the_byte(spark, tmp_path, where):
    def run(schema: str):
        out = ps.memory.Sink()

        @ps.pipeline("bytes")
        def pipeline(p: ps.Pipeline) -> None:
            source = Bytes(BATCHES) if where == "plain" else DecodedBytes(BATCHES, where=where)
            parsed, bad = p.read("in", source).parse_json("value", schema, on_error="split")
            parsed.with_watermark("at", delay="0 seconds", max_ahead=None).write("out", out)
            bad.dead_letter("bad-bytes")

        ps.Job(pipeline, state=tmp_path / "state", spark=spark, checkpoint_every="1 hour").run(until="caught-up")
        return sorted((row["n"], row["part"], row["id"]) for row in out.rows)

    assert [n for n, _, _ in run("id LONG, at TIMESTAMP")] == [0, 1, 2, 6, 7, 8]
    job = JobDirectory(tmp_path / "state", "bytes")
    letters, found = letters_of(dead_letter_queue(job, None), limit=2)
    assert (found, len(letters)) == (3, 2)
    read = duckdb.sql(f'SELECT "record".n, "record".value FROM \'{tmp_path}/state/bytes/deadletters/*/*.parquet\'')
    assert sorted(read.fetchall()) == [(3 + n, value) for n, value in enumerate(BATCHES[1])]

    assert replay(job, None).rows == 3
    assert run("id STRING, at TIMESTAMP") == [(3, "1", "six")], "the others cannot be decoded by anybody"
    again = {letter.raw: letter.attempts for letter in letters_of(dead_letter_queue(job, None), limit=10)[0]}
    assert again["NULL"] == 2


# -------------------------------------------------------------------------------------------- who cannot be replayed


def test_late_rows_are_kept_with_their_time_and_are_refused_a_replay(spark, tmp_path):
    put(tmp_path / "in", "1.json", [{"user": "u", "at": "2026-01-01T01:00:00Z"}])

    @ps.pipeline("late")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.files.Source(tmp_path / "in", schema="user STRING, at TIMESTAMP", max_files_per_batch=1)
        timed = p.read("in", source).with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.memory.Sink())
        counts.late.dead_letter("late-rows")
        timed.where("user = 'nobody'").dead_letter("nobodies", cause="no-such-user")

    def run() -> None:
        ps.Job(pipeline, state=tmp_path / "state", spark=spark).run(until="caught-up")

    run()
    put(tmp_path / "in", "2.json", [{"user": "late", "at": "2026-01-01T00:00:07Z"}, {"user": "nobody"}])
    run()

    job = JobDirectory(tmp_path / "state", "late")
    late = {letter.record["user"]: letter for letter in letters_of(dead_letter_queue(job, "late-rows"), limit=10)[0]}
    assert (late["late"].cause, late["late"].step, late["late"].source) == ("late", "counts", "in")
    assert late["late"].event_time == 1_767_225_607_000_000
    (nobody,) = letters_of(dead_letter_queue(job, "nobodies"), limit=10)[0]
    assert (nobody.cause, nobody.source, json.loads(nobody.raw)) == (
        "no-such-user",
        "in",
        {"user": "nobody", "at": None},
    )
    with pytest.raises(RequestRefused, match="late: they would be late again"):
        replay(job, "late-rows")
    with pytest.raises(RequestRefused, match="no-such-user: they were decoded"):
        replay(job, "nobodies")
