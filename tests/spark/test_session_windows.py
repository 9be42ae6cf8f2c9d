"""Sessions against SQL over the same rows, in any order of batches, watermarks, merges, snapshots and restarts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from oracle.sessions import Sessions
from penstock.clock import MAX_WATERMARK
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import session
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from window_harness import Rig, persistent, taken

pytestmark = pytest.mark.spark

SECOND = 1_000_000
BEGINNING = -(2**63)
GAP = 10 * SECOND
SCHEMA = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("gap", pa.int64()), ("x", pa.int64())]
)
BY = "make_dt_interval(0, 0, 0, CAST(gap AS DECIMAL(18, 6)) / 1000000)"


def step(window, emission=ON_WINDOW_CLOSE, *, keys=(("user", "user"),)) -> WindowAggregate:
    aggregates = (agg.sum("x"), agg.count().alias("n"))
    return WindowAggregate(keys=keys, time="at", window=window, aggregates=aggregates, emission=emission)


@dataclass
class Story:
    """A rig and an oracle that are told the same."""

    rig: Rig
    oracle: Sessions
    chance: random.Random
    out: list[tuple[object, ...]] = field(default_factory=list)
    late: list[tuple[object, ...]] = field(default_factory=list)
    expected: list[tuple[object, ...]] = field(default_factory=list)
    expected_late: list[tuple[object, ...]] = field(default_factory=list)
    clock: int = -30

    def watermark(self) -> int | None:
        return None if self.rig.watermark == BEGINNING else self.rig.watermark

    def rows(self, *, own_gaps: bool, users: list[str | None]) -> list[dict[str, object]]:
        pick = self.chance
        return [
            {
                "user": pick.choice(users),
                "at": pick.choice([None] + [(self.clock + pick.randrange(-15, 40)) * SECOND] * 30),
                "gap": pick.choice([None, 0, -SECOND, 1, SECOND, GAP, 25 * SECOND]) if own_gaps else GAP,
                "x": pick.randrange(-9, 9),
            }
            for _ in range(pick.randrange(1, 8))
        ]

    def batch(self, rows: list[dict[str, object]], *, users: bool) -> None:
        told = [{**row, "user": row["user"] if users else None} for row in rows]
        again, late = self.oracle.batch(told, self.watermark())
        self.rig.wall += 400
        self.rig.process(rows)
        self.expected += again
        self.expected_late += [row["x"] for row in late]

    def advance(self, bound_of) -> None:
        self.clock += self.chance.choice([0, 1, 4, 11, 30])
        to = self.clock * SECOND + self.chance.choice([0, 123_456])
        if to > self.rig.watermark:
            self.rig.advance(to)
            self.expected += self.oracle.advance(bound_of(to))

    def collect(self) -> None:
        self.out += taken(self.rig)
        self.late += [row[-1] for row in taken(self.rig, LATE_PORT)]


def tell(spark, folder: Path, seed: int, window, emission=ON_WINDOW_CLOSE, *, keys=True, own_gaps=False) -> Story:
    """Thirty things that may happen, then the end of time."""
    keyed = (("user", "user"),) if keys else ()
    rig = Rig(spark, step(window, emission, keys=keyed), SCHEMA, folder)
    story = Story(rig, Sessions(lateness=window.lateness), random.Random(seed))
    kept, pending = None, None

    def marks() -> tuple[object, ...]:
        story.collect()
        sizes = [len(rows) for rows in (story.out, story.late, story.expected, story.expected_late)]
        return story.oracle.copy(), sizes, story.clock, story.rig.watermark

    for _ in range(30):
        match story.chance.choice(["batch"] * 5 + ["advance"] * 4 + ["maintain", "snapshot", "write", "restart"]):
            case "batch":
                story.batch(story.rows(own_gaps=own_gaps, users=["a", "b", None, "c" * 300]), users=keys)
            case "advance":
                story.advance(window.bound)
            case "maintain":
                story.rig.maintain()
            case "snapshot":
                pending = (story.rig.operator.snapshot(1), marks())
            case "write" if pending:
                kept, pending = (pending[0].materialise(), pending[1]), None
            case "restart" if kept:
                handle, (oracle, sizes, clock, watermark) = kept
                story.collect()
                story.rig = story.rig.again(handle, partitions=story.chance.choice([1, 2, 3]), wall=story.rig.wall)
                story.rig.watermark = watermark
                story.oracle, story.clock, pending = oracle.copy(), clock, None
                for rows, size in zip((story.out, story.late, story.expected, story.expected_late), sizes, strict=True):
                    del rows[size:]
    story.rig.advance(MAX_WATERMARK)
    story.expected += story.oracle.advance(MAX_WATERMARK)
    story.collect()
    story.rig.operator.close()
    return story


def same(left: list[object], right: list[object]) -> bool:
    assert sorted(left, key=repr) == sorted(right, key=repr)
    return True


def anonymous(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [row[1:] for row in rows]


@pytest.mark.parametrize(
    ("seed", "lateness"), [(0, None), (1, None), (2, "7 seconds"), (3, "7 seconds"), (4, "40 seconds")]
)
def test_sessions_and_late_rows_are_those_of_sql(spark, tmp_path, seed, lateness):
    before = persistent(spark)
    story = tell(spark, tmp_path, seed, session("10 seconds", allowed_lateness=lateness))
    assert same(story.out, story.expected)
    assert same(story.late, story.expected_late)
    assert persistent(spark) <= before


@pytest.mark.parametrize(
    ("seed", "window"), [(0, session("10 seconds", time="processing")), (1, session(by=BY, time="processing"))]
)
def test_sessions_of_processing_time_are_those_of_moments_of_arrival(spark, tmp_path, seed, window):
    """After a restart the clock has gone on, and what the checkpoint did not have arrives again."""
    rig, oracle, chance = Rig(spark, step(window), SCHEMA, tmp_path), Sessions(), random.Random(seed)
    out, expected, since, kept = [], [], [], None

    def arrive(rows: list[dict[str, object]]) -> None:
        expected.extend(oracle.advance(window.bound(rig.wall)))
        rig.process(rows)
        oracle.batch([{**row, "at": rig.wall} for row in rows], None)

    for _ in range(20):
        rig.wall += chance.choice([0, SECOND // 3, 4 * SECOND, 11 * SECOND])
        match chance.choice(["batch"] * 4 + ["tick"] * 3 + ["maintain", "checkpoint", "restart"]):
            case "batch":
                users = [chance.choice(["a", "b", None]) for _ in range(chance.randrange(1, 4))]
                since.append([{"user": user, "at": None, "gap": GAP, "x": chance.randrange(9)} for user in users])
                arrive(since[-1])
            case "tick":
                rig.operator.tick(emit=rig._emit)
                expected += oracle.advance(window.bound(rig.wall))
            case "maintain":
                rig.maintain()
            case "checkpoint":
                out += taken(rig)
                kept, since = (rig.checkpoint(), oracle.copy(), len(out), len(expected)), []
            case "restart" if kept:
                taken(rig)
                handle, then, *sizes = kept
                rig, oracle = rig.again(handle, partitions=chance.choice([1, 2, 3]), wall=rig.wall), then.copy()
                del out[sizes[0] :], expected[sizes[1] :]
                for rows in since:
                    arrive(rows)
    rig.advance(rig.wall + 2**50)
    out += taken(rig)
    rig.advance(MAX_WATERMARK)
    out += taken(rig)
    expected += oracle.advance(MAX_WATERMARK)
    assert same(out, expected)
    assert "late" not in rig.counts
    rig.operator.close()


@pytest.mark.parametrize(("seed", "lateness"), [(0, None), (1, "20 seconds")])
def test_each_row_may_have_its_own_gap(spark, tmp_path, seed, lateness):
    story = tell(spark, tmp_path, seed, session(by=BY, allowed_lateness=lateness), own_gaps=True)
    assert same(story.out, story.expected)
    assert same(story.late, story.expected_late)


def test_without_keys_all_rows_are_of_one(spark, tmp_path):
    story = tell(spark, tmp_path, 0, session("10 seconds", allowed_lateness="3 seconds"), keys=False)
    assert same(story.out, anonymous(story.expected))
    assert same(story.late, story.expected_late)


@pytest.mark.parametrize(
    ("seed", "lateness", "every"),
    [(0, None, None), (1, "12 seconds", None), (2, None, 1_000), (3, "12 seconds", 1_000)],
)
def test_changes_add_up_to_the_sessions_of_sql(spark, tmp_path, seed, lateness, every):
    window = session("10 seconds", allowed_lateness=lateness)
    story = tell(spark, tmp_path, seed, window, EmitStrategy(updates=True, every=every))
    table: dict[tuple[object, ...], tuple[object, ...]] = {}
    before: dict[tuple[object, ...], tuple[object, ...]] = {}
    for row in story.out:
        place, values, change = row[:3], row[3:-1], row[-1]
        if change in ("delete", "update_before"):
            assert table.pop(place) == values
            before = {place: values} if change == "update_before" else {}
        else:
            assert (change == "update_after") == (place in before)
            assert place not in table
            assert before.pop(place, None) != values
            table[place] = values
    assert not before
    rows = [(*place, *values) for place, values in table.items()]
    if every is None:
        assert same(rows, story.oracle.closed)
    assert sum(row[-1] for row in rows) == sum(row[-1] for row in story.oracle.closed)
    assert same(story.late, story.expected_late)


def test_early_results_are_followed_by_the_final_ones(spark, tmp_path):
    story = tell(spark, tmp_path, 0, session("10 seconds"), EmitStrategy(early=True, every=1_000))
    final = [row[:-1] for row in story.out if row[-1] == "on_time"]
    assert same(final, story.expected)
    assert {row[-1] for row in story.out} == {"early", "on_time"}
