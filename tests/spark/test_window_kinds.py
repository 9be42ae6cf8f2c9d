"""Windows of every kind against SQL over the same rows, in any order of batches, watermarks, merges and restores."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oracle import windowed
from penstock.clock import MAX_WATERMARK
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import cumulative, sliding, tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from window_harness import Rig

if TYPE_CHECKING:
    from penstock.handles import StateHandle
    from penstock.state.durable import PendingLayers

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = -(2**63)
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
PLAIN = pa.schema([("user", pa.string()), ("at", pa.int64()), ("x", pa.int64()), ("seen", pa.int64())])

ROW = st.fixed_dictionaries(
    {
        "user": st.sampled_from([None, "a", "b" * 300]),
        "at": st.integers(-40 * SECOND, 60 * SECOND) | st.integers(-4, 6).map(lambda n: n * 10 * SECOND),
        "x": st.none() | st.integers(-9, 9),
    }
)
STEP = st.fixed_dictionaries(
    {
        "rows": st.lists(ROW, min_size=5, max_size=14),
        "to": st.integers(-4, 16).map(lambda n: n * 5 * SECOND),
        "then": st.sampled_from(["nothing", "maintain", "snapshot", "restart", "restart wider", "crash"]),
    }
)
STORY = st.lists(STEP, min_size=3, max_size=4)
STORIES = int(os.environ.get("STORIES", "3"))
MODERATE = settings(
    max_examples=STORIES,
    deadline=None,
    derandomize=STORIES <= 3,
    database=None,
    phases=[Phase.generate],  # a failing story is short enough; looking for a shorter one takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass
class Told:
    """What a story brought about, up to a place in it."""

    rows: list[dict[str, object]] = field(default_factory=list)
    out: list[tuple[object, ...]] = field(default_factory=list)
    late: list[tuple[object, ...]] = field(default_factory=list)
    place: int = 0
    watermark: int = START

    def copy(self) -> Told:
        return replace(self, rows=[*self.rows], out=[*self.out], late=[*self.late])

    def take(self, rig: Rig) -> None:
        self.out += raw(rig)
        self.late += raw(rig, LATE_PORT)
        self.watermark = rig.watermark


class Teller:
    """Runs a story: batches, each with a watermark after it, merges, restarts from a checkpoint, and crashes.

    A crash goes back to the checkpoint before, of which a snapshot may have been written only after the next batch;
    what was sent since is forgotten, and all that came since comes again.
    """

    def __init__(self, spark, step: WindowAggregate, story: list[dict[str, object]], folder: Path) -> None:
        self.story, self.lateness = story, step.window.lateness
        self.told = Told()
        self.rig = Rig(spark, step, SCHEMA, folder)
        self.kept: tuple[StateHandle | None, Told] = None, Told()
        self.named: tuple[PendingLayers, Told] | None = None
        self.crashed: set[int] = set()

    def tell(self) -> Told:
        while self.told.place < len(self.story):
            part = self.story[self.told.place]
            self.told.place += 1
            self.bring(part)
            if self.named is not None:
                pending, then = self.named
                self.kept, self.named = (pending.materialise(), then), None
            self.do(part["then"])
        self.rig.advance(MAX_WATERMARK)
        self.told.take(self.rig)
        self.rig.operator.close()
        return self.told

    def bring(self, part: dict[str, object]) -> None:
        rig = self.rig
        closed = rig.watermark - self.lateness if rig.watermark != START else START
        self.told.rows += [{**row, "seen": closed} for row in part["rows"]]
        rig.wall += 400
        rig.process(part["rows"])
        if part["to"] > rig.watermark:
            rig.advance(part["to"])

    def do(self, then: str) -> None:
        match then:
            case "maintain":
                self.rig.maintain()
            case "snapshot":
                pending = self.rig.operator.snapshot(1)
                self.told.take(self.rig)
                self.named = pending, self.told.copy()
            case "restart" | "restart wider":
                handle = self.rig.checkpoint()
                self.told.take(self.rig)
                self.kept = handle, self.told.copy()
                self.go_back(partitions=3 if then == "restart wider" else 2)
            case "crash" if self.told.place not in self.crashed:
                self.crashed.add(self.told.place)
                self.told.take(self.rig)
                self.go_back(partitions=2)

    def go_back(self, *, partitions: int) -> None:
        handle, then = self.kept
        rig, self.told = self.rig, then.copy()
        rig.operator.close()
        self.rig = Rig(
            rig.spark,
            rig.spec,
            rig.schema,
            rig.root,
            restored=handle,
            generation=rig.generation + 1,
            partitions=partitions,
            watermark=then.watermark,
            wall=rig.wall,
        )


def tell(spark, step: WindowAggregate, story: list[dict[str, object]]) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        return Teller(spark, step, story, Path(folder)).tell()


def raw(rig: Rig, port: str = "out") -> list[tuple[object, ...]]:
    """What was sent, in order, with times in microseconds."""
    rows: list[tuple[object, ...]] = []
    mine = [batch for to, batch in rig.sent if to == port]
    rig.sent = [(to, batch) for to, batch in rig.sent if to != port]
    for batch in mine:
        frame = batch.frame
        names = [
            f"unix_micros({field.name})" if field.dataType.typeName() == "timestamp" else field.name
            for field in frame.schema.fields
        ]
        rows += [tuple(row) for row in frame.selectExpr(*names).collect()]
        batch.release()
    return rows


def same(left: list[tuple[object, ...]], right: list[tuple[object, ...]]) -> bool:
    assert sorted(left, key=repr) == sorted(right, key=repr)
    return True


KINDS = {
    "tumbling": (tumbling("10 seconds", offset="3 seconds"), {"size": 10 * SECOND, "offset": 3 * SECOND}),
    "sliding": (sliding("15 seconds", "10 seconds"), {"size": 15 * SECOND, "slide": 10 * SECOND}),
    "sliding shifted": (
        sliding("30 seconds", "10 seconds", offset="-4 seconds"),
        {"size": 30 * SECOND, "slide": 10 * SECOND, "offset": -4 * SECOND},
    ),
    "cumulative": (
        cumulative("10 seconds", "30 seconds", offset="5 seconds"),
        {"step": 10 * SECOND, "size": 30 * SECOND, "offset": 5 * SECOND},
    ),
}


def expected(kind: str, lengths: dict[str, int], rows: list[dict[str, object]], query: str) -> list[tuple[object, ...]]:
    database = duckdb.connect()
    database.register("rows", pa.Table.from_pylist(rows, schema=PLAIN))
    found = windowed.windows(kind.split(maxsplit=1)[0], low=-100 * SECOND, high=200 * SECOND, **lengths)
    return database.sql(query.format(windows=found)).fetchall()


def step(window, **more: object) -> WindowAggregate:
    keys = more.pop("keys", (("user", "user"),))
    return WindowAggregate(
        keys=keys, time="at", window=window, aggregates=(agg.sum("x"), agg.count().alias("n")), **more
    )


@pytest.mark.parametrize("kind", KINDS)
@given(story=STORY)
@MODERATE
def test_final_results_and_late_rows_are_those_of_sql(spark, kind, story):
    window, lengths = KINDS[kind]
    told = tell(spark, step(window), story)
    assert same(told.out, expected(kind, lengths, told.rows, windowed.RESULT))
    assert same(told.late, expected(kind, lengths, told.rows, windowed.LATE))


@pytest.mark.parametrize("kind", ["sliding", "cumulative"])
@given(story=STORY)
@MODERATE
def test_without_keys_as_well(spark, kind, story):
    window, lengths = KINDS[kind]
    told = tell(spark, step(window, keys=()), story)
    query = windowed.RESULT.replace('"user", s, e', "s, e")
    assert same(told.out, expected(kind, lengths, told.rows, query))


LATENESS = {
    "tumbling": (tumbling("10 seconds", allowed_lateness="7 seconds"), {"size": 10 * SECOND}),
    "sliding": (
        sliding("20 seconds", "10 seconds", allowed_lateness="12 seconds"),
        {"size": 20 * SECOND, "slide": 10 * SECOND},
    ),
    "cumulative": (
        cumulative("10 seconds", "30 seconds", allowed_lateness="7 seconds"),
        {"step": 10 * SECOND, "size": 30 * SECOND},
    ),
}


@pytest.mark.parametrize("kind", LATENESS)
@given(story=STORY)
@MODERATE
def test_the_last_result_sent_of_each_window_has_all_rows_within_the_lateness(spark, kind, story):
    window, lengths = LATENESS[kind]
    told = tell(spark, step(window), story)
    last = {row[:3]: row for row in told.out}
    assert same(list(last.values()), expected(kind, lengths, told.rows, windowed.RESULT))
    assert same(told.late, expected(kind, lengths, told.rows, windowed.LATE))


@pytest.mark.parametrize("every", [None, 1_000], ids=["each batch", "paced"])
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "cumulative", "lateness"])
@given(story=STORY)
@MODERATE
def test_changes_add_up_to_the_results_of_sql(spark, kind, every, story):
    window, lengths = LATENESS["sliding"] if kind == "lateness" else KINDS[kind]
    told = tell(spark, step(window, emission=EmitStrategy(updates=True, every=every)), story)
    table: dict[tuple[object, ...], tuple[object, ...]] = {}
    before: dict[tuple[object, ...], tuple[object, ...]] = {}
    for row in told.out:
        place, values, change = row[:3], row[3:-1], row[-1]
        if change == "update_before":
            assert table[place] == values
            before[place] = values
        else:
            assert (change == "update_after") == (place in table) == (place in before)
            assert before.pop(place, None) != values
            table[place] = values
    rows = [(*place, *values) for place, values in table.items()]
    assert same(rows, expected("sliding" if kind == "lateness" else kind, lengths, told.rows, windowed.RESULT))


CLOCKS = {  # moments at which clocks jump in the zone
    "Europe/Berlin": [1_743_296_400, 1_761_440_400],
    "America/Sao_Paulo": [1_540_008_000 + 14 * 86_400, 1_550_368_800],
    "America/St_Johns": [1_268_537_460, 1_289_097_060],
}


@pytest.mark.parametrize(
    ("zone", "kind"), [("Europe/Berlin", "day"), ("America/Sao_Paulo", "day"), ("America/St_Johns", "week")]
)
@given(story=st.data())
@MODERATE
def test_windows_by_the_calendar_are_those_of_date_trunc(spark, zone, kind, story):
    centre = story.draw(st.sampled_from([*CLOCKS[zone], -31_536_000]))
    scale = 1_800  # a second of the story is half an hour around the jump

    def moved(micros: int) -> int:
        return centre * SECOND + micros * scale

    parts = [
        {**part, "rows": [{**row, "at": moved(row["at"])} for row in part["rows"]], "to": moved(part["to"])}
        for part in story.draw(STORY)
    ]
    told = tell(spark, step(tumbling(f"1 {kind}", timezone=zone)), parts)
    spark.createDataFrame(pa.Table.from_pylist(told.rows, schema=PLAIN)).createOrReplaceTempView("calendar_rows")
    usual = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = spark.sql(windowed.by_the_calendar(kind, "calendar_rows")).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", usual)
    assert same(told.out, [tuple(row) for row in found])


FAR = {kind: window for kind, (window, _) in KINDS.items()} | {
    "day": tumbling("1 day", timezone="Europe/Berlin"),
    "hours": sliding("4 hours", "1 hour", timezone="America/St_Johns"),
}


@pytest.mark.parametrize("kind", FAR)
def test_times_so_far_that_no_window_can_have_bounds_are_late_and_end_no_job(spark, tmp_path, kind):
    rig = Rig(spark, step(FAR[kind]), SCHEMA, tmp_path)
    micros = ("9223372036854775807L", "-9223372036854775807L - 1L", "2305843009213693953L", "0L")
    rows = ", ".join(f"('a', timestamp_micros({at}), {x}L)" for x, at in enumerate(micros))
    rig.process_frame(spark.sql(f"SELECT * FROM VALUES {rows} AS t(user, at, x)"))
    rig.advance(MAX_WATERMARK)
    assert {row[3:] for row in raw(rig)} == {(3, 1)}
    assert sorted(row[-1] for row in raw(rig, LATE_PORT)) == [0, 1, 2]
    assert (rig.counts["late"], rig.counts["missing_time"]) == (3, 3)
    rig.operator.close()
