"""Rows that are grouped before they are exchanged, and their figures, are those of rows grouped in their places."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.elements import Batch, SourcePartitions
from penstock.facts import RowsLate
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import sliding, tumbling
from penstock.operators.windows.ingest import LayerQueries
from penstock.operators.windows.panes import SlidingWindow
from penstock.spark import kept_plans
from penstock.spark.bound_plans import ObservedRows, note_sent, plan_of
from penstock.spark.kept_rows import KeptRows
from penstock.spark.plans import AHEAD_BOUND, Figure, figure_by_partition, observe_sql
from penstock.spark.sql import variable_literal
from window_harness import Rig, counted, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema(
    [("k", pa.float64()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64()), ("window_end", pa.int32())]
)
KEYS = [0.0, -0.0, math.nan, None, 1.5, -1.5]
PARTITIONS = ("0", "1", "2")
BATCHES = 4


def step(window, keys) -> WindowAggregate:
    simple = (agg.sum("x"), agg.count().alias("n"), agg.avg("x"), agg.max("x"))
    # a row that is late has no such quotient: what is computed of it would fail
    divided = agg.sum("CAST(120 div x AS BIGINT)").alias("d")
    aggregates = (*simple, agg.count_distinct("x"), agg.first("x", by="x"), divided)
    return WindowAggregate(keys=keys, time="at", window=window, aggregates=aggregates)


def rows(start: int, least: int) -> list[dict[str, object]]:
    """Rows of 40 seconds; each twentieth has no time, those before ``least`` seconds, no quotient: they are late."""
    found: list[dict[str, object]] = []
    for n in range(240):
        second = start + n % 40
        at = None if n % 20 == 7 else second * SECOND
        is_late = at is None or second < least
        found.append({"k": KEYS[n % 6], "at": at, "x": 0 if is_late else 1 + n, "window_end": n % 3})
    return found


class Story:
    """Batches of rows, of which some are late; what came of them, and what was observed."""

    def __init__(self, spark, folder, window, *, sent: bool, keys, python: bool = False) -> None:
        self.rig = Rig(spark, step(window, keys), SCHEMA, folder, late_read=False)
        self.facts: list[object] = []
        self.rig.report = self.facts.append
        self.sent = sent
        self.python = python
        """Whether tasks make the rows in Python, as sources do that read in tasks."""
        self.stays = (window.size - window.slide) // SECOND if isinstance(window, SlidingWindow) else 0
        """Seconds for which a row is not late yet after its first window has ended."""
        self.found: list[tuple[object, ...]] = []
        self.costs: list[tuple[int, int]] = []
        self.preparer = self.rig.operator._preparer
        self.below = self.preparer.prepare(self.rig.input, lambda rows: rows.where("x >= 0"))
        self.figures = self._figures()

    def _figures(self):
        micros, bound = "unix_micros(at)", variable_literal(AHEAD_BOUND, column="at")
        greatest = f"max(CASE WHEN {{mine}} AND {micros} <= {bound} THEN {micros} END)"
        frame = self.preparer.editor.frame(self.below.plan)
        figures = {
            "max": Figure((greatest.format(mine="true"),), merge="max"),
            "ahead": Figure((f"count(CASE WHEN {micros} > {bound} THEN 1 END)",)),
            "partitions": figure_by_partition(greatest, "window_end", PARTITIONS, frame.schema, merge="max"),
        }
        return observe_sql(frame, "time", figures, names=PARTITIONS, max_ahead=0)

    def process(self, given: list[dict[str, object]], turn: int) -> None:
        frame = self.rig.frame(given)
        if self.python:
            frame = frame.mapInArrow(lambda batches: batches, frame.schema)
        if self.sent:
            note_sent(frame, len(given))
        observed = ObservedRows(self.preparer.bind(self.below, plan_of(frame)), self.figures, (turn * 4 + 38) * SECOND)
        batch = Batch(
            frame=self.rig.operator._queries.frame(observed),
            sequence=turn,
            metrics={"time": observed.metrics},
            partitions=SourcePartitions(names=PARTITIONS, column="window_end", source="in"),
        )
        with counted(self.rig.spark) as cost:
            deferred = self.rig.operator.process(batch, source=0, watermark=self.rig.watermark, emit=self.rig._emit)
        assert deferred is None
        self.costs.append((cost.jobs, cost.compilations))
        assert batch.metrics["time"].value is not None
        self.facts.append(dict(batch.metrics["time"].value))

    def run(self) -> tuple[list[str], list[object]]:
        for turn in range(BATCHES):
            self.process(rows(turn * 4, turn * 10 - self.stays), turn)
            self.rig.advance((turn + 1) * 10 * SECOND)
            self.found += self.rig.take()
        layers, lease = self.rig.operator._stack.lease_named([each.name for each in self.rig.operator._stack.sized()])
        self.facts += [(each.rows, each.first_end, each.last_end) for each in layers]
        lease.release()
        self.facts.append(dict(self.rig.counts))
        self.rig = self.rig.again(self.rig.checkpoint(), partitions=3)
        self.rig.process([row for row in rows(60, 0) if row["x"]])
        self.rig.advance(MAX_WATERMARK)
        self.found += self.rig.take()
        self.rig.operator.close()
        return sorted(map(repr, self.found)), self.facts


@pytest.mark.parametrize(
    ("window", "made", "keys"),
    [
        (tumbling("10 seconds"), {"sent": False}, (("k", "k"),)),
        (sliding("20 seconds", "5 seconds"), {"sent": True}, (("k", "k"),)),
        (tumbling("10 seconds"), {"sent": True}, (("k", "k"), ("q", "120 div x"))),
        (tumbling("10 seconds"), {"sent": False}, ()),
        (tumbling("10 seconds"), {"sent": False, "python": True}, (("k", "k"),)),
    ],
    ids=["with an exchange", "in one stage", "in one stage by a key that no late row has", "without keys", "Python"],
)
def test_groups_and_their_figures_are_those_of_rows(spark, tmp_path, monkeypatch, window, made, keys):
    before = persistent(spark)
    grouped, plans = LayerQueries.grouped, list[object]()
    monkeypatch.setattr(LayerQueries, "grouped", lambda *a, **kw: plans.append(grouped(*a, **kw)) or plans[-1])
    on_groups = Story(spark, tmp_path / "groups", window, keys=keys, **made)
    found = on_groups.run()
    assert len(plans) == BATCHES + 1
    assert None not in plans
    late = [fact.rows for fact in found[1] if isinstance(fact, RowsLate)]
    assert late[:3] == [4] * 3, "rows without a time alone"
    assert max(late) > 8
    assert [jobs for jobs, _ in on_groups.costs] == [1] * BATCHES
    assert on_groups.costs[-1][1] == 0, "compilations"
    monkeypatch.setattr(LayerQueries, "grouped", lambda *_, **__: None)
    if not made["sent"]:  # so rows are exchanged and then grouped
        monkeypatch.setattr(kept_plans, "is_keepable", lambda _plan: False)
    assert Story(spark, tmp_path / "rows", window, keys=keys, **made).run() == found
    assert persistent(spark) <= before


@pytest.mark.parametrize("how", ["tasks have fewer rows than were sent", "more rows are kept than were observed"])
def test_figures_that_are_lost_with_the_groups_are_counted_from_the_rows(spark, tmp_path, monkeypatch, how):
    story = Story(spark, tmp_path, tumbling("10 seconds"), sent=True, keys=(("k", "k"),))
    story.process(rows(0, 0), 0)
    story.rig.advance(20 * SECOND)
    if how.startswith("tasks"):
        plans = story.rig.operator._preparer._kept._shapes.values()
        (own,) = [shape.plan._own for shape in plans if shape.plan is not None and shape.plan._own is not None]
        own.of = lambda rows, of=own.of: (of(rows)[0], lambda: 0)
    else:
        run = KeptRows.run
        monkeypatch.setattr(KeptRows, "run", lambda rows: run(rows) + 1)
    story.process(rows(7, 20), 1)
    assert story.costs[-1][0] == 3, "the layer, how many rows it has, and how many of the batch are late"
    assert story.rig.counts["late"] == sum(row["x"] == 0 for row in [*rows(0, 0), *rows(7, 20)])
    assert story.facts[-1] == {"max": 42 * SECOND, "ahead": 24, "partitions": dict.fromkeys(PARTITIONS, 42 * SECOND)}
    story.rig.operator.close()
