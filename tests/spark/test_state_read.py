"""State as a table: what ps.read_state and penstock state query show is what an oracle counts by hand."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import defaultdict
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from pyspark.sql import functions as F

import penstock as ps
from core.cli_kit import say
from penstock.admin.state_read import StateReader, _changes, open_job, resolve_manifest, state_of
from penstock.errors import CondemnedWhileRead, StateIncompatible, UnknownName
from spark.testing_kit import NOWHERE, at, clicks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.testing.pipeline_run import PipelineRun

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

GOLDEN = Path(__file__).parents[1] / "core" / "cli_golden"

FIRST = [("u", 1, "00:10"), ("u", 2, "00:50"), ("v", 3, "01:10"), ("u", 4, "02:05")]
SECOND = [("u", 5, "02:20"), ("v", 6, "02:40"), (None, 7, "02:50")]
ROWS = [*FIRST, *SECOND]

WINDOWS = {
    "by-minute": ps.tumbling("1 minute"),
    "by-two": ps.sliding("2 minutes", "1 minute"),
    "visits": ps.session("1 minute"),
    "ever": ps.global_window(),
}
MORE_WINDOWS = {
    "growing": ps.cumulative("1 minute", "3 minutes"),
    "in-berlin": ps.tumbling("1 hour", timezone="Europe/Berlin"),
    "threes": ps.count_window(3),
    "running": ps.global_window(every_rows=2),
}

AGGREGATES = {
    "total": ps.agg.sum("amount"),
    "n": ps.agg.count(),
    "paid": ps.agg.count().where("amount > 4"),
    "least": ps.agg.min("amount"),
    "most": ps.agg.max("amount"),
    "mean": ps.agg.avg("amount"),
    "exact": ps.agg.avg("CAST(amount AS DECIMAL(10, 2))"),
    "spread": ps.agg.stddev("amount"),
    "squares": ps.agg.var_pop("amount"),
    "earliest": ps.agg.first("amount"),
    "latest": ps.agg.last("amount"),
    "nested": ps.agg.last("named_struct('content-type', user, 'variant', amount)"),
    "all": ps.agg.collect("amount", limit=2),
    "kinds": ps.agg.count_distinct("amount"),
    "about": ps.agg.approx_count_distinct("amount"),
    "median": ps.agg.percentile("amount", 0.5),
    "ends": ps.agg.percentile("amount", [0.0, 1.0]),
    "middle": ps.agg.approx_percentile("amount", 0.5),
}


def weighted() -> object:
    return ps.agg.custom(
        "weighted",
        of="amount",
        partial={"squares": lambda x: F.sum(x * x), "total": F.sum},
        merge={"squares": F.sum, "total": F.sum},
        finish=lambda squares, total: squares / total,
    ).alias("weighted")


def shop_of(name: str, windows: dict[str, object]) -> PipelineDefinition:
    @ps.pipeline(name)
    def made(p: ps.Pipeline) -> None:
        read = p.read("orders", ps.files.Source(NOWHERE, schema="user STRING, amount BIGINT, at TIMESTAMP"))
        rows = read.with_watermark("at", delay="0 seconds")
        for uid, window in windows.items():
            grouped = rows.group_by("user", window)
            sums = grouped.agg(uid, ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
            sums.write(f"{uid}-out", ps.memory.Sink())

    return made


shop, more_shop = shop_of("shop", WINDOWS), shop_of("more", MORE_WINDOWS)


@ps.pipeline("figures")
def figures(p: ps.Pipeline) -> None:
    read = p.read("orders", ps.files.Source(NOWHERE, schema="user STRING, amount BIGINT, at TIMESTAMP"))
    by_hour = read.with_watermark("at", delay="0 seconds").group_by("user", ps.tumbling("1 hour"))
    by_hour.agg("all-kinds", *(made.alias(name) for name, made in AGGREGATES.items())).write("a", ps.memory.Sink())
    by_hour.agg("own", ps.agg.count().alias("n"), weighted()).write("o", ps.memory.Sink())


def send(t: PipelineRun, rows: list[tuple[str | None, int, str]]) -> None:
    t.send("orders", [{"user": u, "amount": a, "at": f"2026-01-01T00:{time}Z"} for u, a, time in rows])


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> object:
    with ps.testing.run(shop, spark) as t:
        send(t, FIRST)
        t.checkpoint()
        send(t, SECOND)
        t.savepoint("later")
        yield t


@pytest.fixture(scope="module")
def more(spark: SparkSession) -> object:
    with ps.testing.run(more_shop, spark) as t:
        send(t, FIRST)
        send(t, SECOND)
        t.checkpoint()
        yield t


@pytest.fixture(scope="module")
def figured(spark: SparkSession) -> object:
    with ps.testing.run(figures, spark) as t:
        send(t, FIRST)
        send(t, SECOND)
        t.checkpoint()
        yield t


def table(frame: DataFrame) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Amount and count by key, and by window if there are any, its bounds as minutes and seconds."""
    names = [name for name in frame.columns if name not in ("amount", "n")]
    found = {}
    for row in frame.collect():
        times = [row[name].astimezone(timezone.utc).strftime("%H:%M:%S") for name in names if name != "user"]
        found[(row["user"], *times)] = (row["amount"], row["n"])
    return found


def by(key_of: object) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The oracle: amounts of ROWS summed by every key that a row has."""
    sums: dict[tuple[object, ...], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for user, amount, time in ROWS:
        for key in key_of(int(time[:2]) * 60 + int(time[3:])):
            total, n = sums[(user, *key)]
            sums[(user, *key)] = (total + amount, n + 1)
    return dict(sums)


def clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def minutes(second: int) -> list[tuple[str, str]]:
    start = second // 60 * 60
    return [(clock(start), clock(start + 60))] if start + 60 > 170 else []


def two_minutes(second: int) -> list[tuple[str, str]]:
    starts = (second // 60 * 60 - 60, second // 60 * 60)
    return [(clock(start), clock(start + 120)) for start in starts if start >= -60 and start + 120 > 170]


def growing(second: int) -> list[tuple[str, str]]:
    return [("00:00:00", clock(end)) for end in (60, 120, 180) if end > second and end > 170]


EXPECTED = {
    "by-minute": by(minutes),
    "by-two": by(two_minutes),
    "growing": by(growing),
    "in-berlin": by(lambda _: [("00:00:00", "01:00:00")]),
    "visits": {
        ("u", "00:02:05", "00:03:20"): (9, 2),
        ("v", "00:02:40", "00:03:40"): (6, 1),
        (None, "00:02:50", "00:03:50"): (7, 1),
    },
    "threes": {
        ("u", "00:02:20", "00:02:20"): (5, 1),
        ("v", "00:01:10", "00:02:40"): (9, 2),
        (None, "00:02:50", "00:02:50"): (7, 1),
    },
    "ever": by(lambda _: [()]),
    "running": by(lambda _: [()]),
}


@pytest.mark.parametrize(("job", "uid"), [*(("run", uid) for uid in WINDOWS), *(("more", uid) for uid in MORE_WINDOWS)])
def test_each_kind_of_window_is_a_table_of_what_is_open(
    spark: SparkSession, request: pytest.FixtureRequest, job: str, uid: str
) -> None:
    pipeline = shop if job == "run" else more_shop
    folder = request.getfixturevalue(job).folder
    found = ps.read_state(spark, folder / pipeline.graph().name, uid)

    assert found.columns[0] == "user"
    assert table(found) == EXPECTED[uid]
    with_code = ps.read_state(spark, folder, uid, pipeline=pipeline)
    assert with_code.columns == found.columns
    assert table(with_code) == EXPECTED[uid]


def test_an_older_checkpoint_is_read_by_number_or_by_name(spark: SparkSession, run: PipelineRun) -> None:
    older = open_job(run.folder, "shop").read()
    number = sorted(older.restorable)[-2]

    assert ("u", "00:02:00", "00:03:00") in table(ps.read_state(spark, run.folder, "by-minute", at="later"))
    assert table(ps.read_state(spark, run.folder, "by-minute", at=number)) == {("u", "00:02:00", "00:03:00"): (4, 1)}


def test_every_aggregate_is_finished_without_the_pipeline_as_with_it(spark: SparkSession, figured: PipelineRun) -> None:
    alone = ps.read_state(spark, figured.folder, "all-kinds")
    with_code = ps.read_state(spark, figured.folder, "all-kinds", pipeline=figures)

    assert alone.schema.simpleString() == with_code.schema.simpleString()
    rows = {row["user"]: row.asDict() for row in alone.collect()}
    assert rows == {row["user"]: row.asDict() for row in with_code.collect()}
    assert {name: rows["u"][name] for name in ("total", "n", "paid", "least", "most", "mean", "median")} == {
        "total": 12, "n": 4, "paid": 1, "least": 1, "most": 5, "mean": 3.0, "median": 3.0,
    }  # fmt: skip
    assert (rows["u"]["earliest"], rows["u"]["latest"], rows["u"]["all"], rows["u"]["ends"]) == (1, 5, [1, 2], [1, 5])


def test_of_a_users_own_aggregate_the_parts_are_shown_and_with_the_pipeline_the_result(
    spark: SparkSession, figured: PipelineRun
) -> None:
    alone = {row["user"]: row for row in ps.read_state(spark, figured.folder, "own").collect()}
    with_code = {row["user"]: row for row in ps.read_state(spark, figured.folder, "own", pipeline=figures).collect()}

    assert sum(alone["u"]["weighted__total"]) == 12
    assert sum(alone["u"]["weighted__squares"]) == 46
    assert with_code["u"]["weighted"] == 46 / 12
    assert alone["u"]["n"] == with_code["u"]["n"] == 4


def test_raw_is_the_merged_partials(spark: SparkSession, run: PipelineRun) -> None:
    raw = ps.read_state(spark, run.folder, "by-two", raw=True)

    assert raw.columns == ["user", "pane_start", "pane_end", "amount__sum", "n__count"]
    assert {(row["user"], row["pane_start"].minute, row["amount__sum"]) for row in raw.collect()} >= {("u", 2, 9)}


def test_the_table_is_the_users_and_outlives_the_files(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("v", 0)])
        t.checkpoint()
        found = ps.read_state(spark, t.folder, "counts")
        folder = t.folder
    found.createOrReplaceTempView("kept")

    assert not (folder / "clicks" / "state").exists()
    assert spark.sql("SELECT sum(n) AS n FROM kept").collect()[0]["n"] == 2


def test_what_holds_no_state_says_so_with_what_there_is(spark: SparkSession, run: PipelineRun) -> None:
    with pytest.raises(UnknownName, match=r"'orders' is a source. A checkpoint has its position.*by-minute"):
        ps.read_state(spark, run.folder, "orders")
    with pytest.raises(UnknownName, match="'ever-out' is a sink"):
        ps.read_state(spark, run.folder, "ever-out")
    with pytest.raises(UnknownName, match="Did you mean 'by-minute'"):
        ps.read_state(spark, run.folder, "by-minut")
    with pytest.raises(UnknownName, match=r"no savepoint 'latr'. Did you mean 'later'"):
        ps.read_state(spark, run.folder, "by-minute", at="latr")


def test_condemned_while_read_is_an_error_and_never_a_part(spark: SparkSession) -> None:
    """A reader that chose its checkpoint before others made it one of too many."""
    with ps.testing.run(clicks(), spark, retained=1) as t:
        t.send("a", [at("u", 0), at("v", 0)])
        t.checkpoint()
        directory = open_job(t.folder)
        before = resolve_manifest(directory.read(), None)
        reader = StateReader(spark, directory)
        files = [directory.filesystem.url(file.path) for file in state_of(before, "counts").layers[0].files]
        t.send("a", [at("u", 0)])
        t.checkpoint()

        assert Path(files[0].removeprefix("file://")).exists(), "there or gone, it makes no difference"
        with pytest.raises(CondemnedWhileRead, match="was condemned while it was read"):
            reader.rows(before, "counts")
        t.send("a", [at("u", 5)])
        t.checkpoint()
        t.checkpoint()
        assert not Path(files[0].removeprefix("file://")).exists()
        with pytest.raises(CondemnedWhileRead, match="was condemned while it was read"):
            reader.rows(before, "counts")


def test_changed_code_reads_what_it_would_take_over_and_nothing_else(spark: SparkSession, run: PipelineRun) -> None:
    def other(window: object) -> PipelineDefinition:
        @ps.pipeline("shop")
        def made(p: ps.Pipeline) -> None:
            rows = p.read("orders", ps.files.Source(NOWHERE, schema="user STRING, amount BIGINT, at TIMESTAMP"))
            sums = rows.with_watermark("at", delay="0 seconds").group_by("user", window)
            sums.agg("by-minute", ps.agg.sum("amount").alias("amount")).write("out", ps.memory.Sink())

        return made

    fewer = ps.read_state(spark, run.folder, "by-minute", pipeline=other(WINDOWS["by-minute"]))
    assert fewer.columns == ["user", "window_start", "window_end", "amount"]
    assert {row["user"]: row["amount"] for row in fewer.collect()} == {"u": 9, "v": 6, None: 7}
    with pytest.raises(StateIncompatible, match="the pipeline declares 'tumbling 2 minutes'"):
        ps.read_state(spark, run.folder, "by-minute", pipeline=other(ps.tumbling("2 minutes")))


# ------------------------------------------------------------------------------------------------------ from a terminal


def ask(run: PipelineRun, *arguments: str) -> str:
    said = say("state", "query", "shop", *arguments, "--state", str(run.folder))
    assert said.code == 0, said.err
    assert "reading the state of" in said.err
    return said.out


def test_a_query_prints_a_table_for_people(run: PipelineRun) -> None:
    sql = "SELECT user, amount, window_end FROM by_minute WHERE user IS NOT NULL ORDER BY amount DESC"

    assert [line.rstrip() for line in ask(run, "by-minute", sql).splitlines()] == [
        "user  amount  window_end",
        "u          9  2026-01-01 00:03:00Z",
        "v          6  2026-01-01 00:03:00Z",
        "2 rows",
    ]
    assert ask(run, "ever", "--limit", "1").splitlines()[-1] == "the first 1 row; --limit 0 shows all"


def test_other_formats_are_for_programs(run: PipelineRun, tmp_path: object) -> None:
    sql = "SELECT * FROM `by-minute` ORDER BY amount"
    rows = list(csv.DictReader(io.StringIO(ask(run, "by-minute", sql, "--format", "csv"))))
    document = json.loads(ask(run, "by-minute", sql, "--format", "json", "--at", "later"))
    target = tmp_path / "minute.parquet"
    assert ask(run, "by-minute", sql, "--format", "parquet", "--to", str(target)) == ""

    assert [row["amount"] for row in rows] == ["6", "7", "9"]
    assert rows[0] == {
        "user": "v", "window_start": "2026-01-01 00:02:00Z", "window_end": "2026-01-01 00:03:00Z", "amount": "6",
        "n": "1",
    }  # fmt: skip
    assert document["schema"] == "penstock.state.query/1"
    assert document["checkpoint"] == open_job(run.folder).read().pins["later"].checkpoint
    assert document["columns"][0] == {"name": "user", "type": "string"}
    assert document["answer"][1] == {
        "user": None, "window_start": "2026-01-01T00:02:00+00:00", "window_end": "2026-01-01T00:03:00+00:00",
        "amount": 7, "n": 1,
    }  # fmt: skip
    assert duckdb.sql(f"SELECT sum(amount) FROM '{target}'").fetchall() == [(22,)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("state-query-said.txt", ["--limit", "2"]),
        ("state-query-said.csv", ["--format", "csv"]),
        ("state-query-said.json", ["--format", "json"]),
        ("state-query-said-cut.json", ["--format", "json", "--limit", "2"]),
        ("state-query-said-diff.json", ["--format", "json", "--diff", "1", "later"]),
    ],
)
def test_what_is_answered_is_golden(run: PipelineRun, name: str, options: list[str]) -> None:
    said = ask(run, "by-minute", *options)
    golden = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(said)

    assert said == golden.read_text()


def test_a_diff_tells_what_came_went_and_changed(run: PipelineRun) -> None:
    older, newer = sorted(open_job(run.folder, "shop").read().restorable)[-2:]
    out = ask(run, "ever", "--diff", str(older), str(newer), "--format", "json")
    changes = {(row["_change"], row["user"], row["amount"]) for row in json.loads(out)["answer"]}
    back = ask(run, "visits", "SELECT _change, count(*) AS n FROM visits GROUP BY 1 ORDER BY 1", "--diff", "later",
               str(older), "--format", "csv")  # fmt: skip

    assert changes == {
        ("update_before", "u", 7), ("update_after", "u", 12), ("update_before", "v", 3), ("update_after", "v", 9),
        ("insert", None, 7),
    }  # fmt: skip
    assert back == "_change,n\ndelete,3\ninsert,2\n"


def test_a_diff_may_have_a_column_called_change(spark: SparkSession) -> None:
    older, newer = (spark.sql(f"SELECT 'u' AS user, {n} AS change, 'x' AS row") for n in (1, 2))
    found = [tuple(row) for row in _changes(older, newer, ("user",)).collect()]
    assert sorted(found) == [("u", 1, "x", "update_before"), ("u", 2, "x", "update_after")]


@pytest.mark.parametrize(
    "sql", ["DROP TABLE by_minute", "INSERT INTO by_minute VALUES (1)", "SELECT nothing FROM by_minute", "SELECT 1;"]
)
def test_only_a_select_over_the_table_is_run(run: PipelineRun, sql: str) -> None:
    said = say("state", "query", "shop", "by-minute", sql, "--state", str(run.folder))

    assert said.code == 64
    assert re.search(r"not a SELECT over by_minute \(user, window_start, window_end, amount, n\)", said.err)
    assert "Traceback" not in said.err


def test_duckdb_reads_the_files_that_show_names(run: PipelineRun) -> None:
    said = say("state", "show", "shop", "--state", str(run.folder), "--json")
    files = next(held["files"] for held in json.loads(said.out)["steps"] if held["uid"] == "ever")
    paths = [str(run.folder / "shop" / file["path"]) for file in files]

    found = duckdb.sql(f'SELECT "user", sum(amount__sum) FROM read_parquet({paths}) GROUP BY ALL').fetchall()

    assert set(found) == {("u", 12), ("v", 9), (None, 7)}


def test_reading_changes_nothing_in_the_directory(spark: SparkSession, run: PipelineRun) -> None:
    def content() -> dict[object, bytes]:
        return {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}

    before = content()
    ps.read_state(spark, run.folder, "by-two").count()
    ask(run, "by-two")

    assert content() == before
