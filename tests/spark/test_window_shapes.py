"""What windows of every kind, and every way of sending them, cost: jobs, exchanges, compilations, counted by Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.interfaces.operator import MAIN_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import cumulative, sliding, tumbling
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from window_harness import Rig, counted, deliver, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])

WAYS = {
    "sliding": (sliding("30 seconds", "10 seconds"), ON_WINDOW_CLOSE, [0, 0, 1, 0, 1, 1]),
    "cumulative": (cumulative("10 seconds", "1 minute"), ON_WINDOW_CLOSE, [0, 0, 1, 0, 1, 1]),
    "by the calendar": (sliding("3 hours", "1 hour", timezone="Europe/Berlin"), ON_WINDOW_CLOSE, [0, 0, 1, 0, 1, 1]),
    "lateness": (tumbling("10 seconds", allowed_lateness="1 minute"), ON_WINDOW_CLOSE, [0, 0, 1, 1, 1, 1]),
    "updates": (tumbling("10 seconds"), EmitStrategy(updates=True), [1, 1, 0, 1, 0, 0]),
    "updates of panes": (sliding("30 seconds", "10 seconds"), EmitStrategy(updates=True), [1, 1, 0, 1, 0, 0]),
    "early": (tumbling("10 seconds"), EmitStrategy(early=True, every=10), [1, 1, 1, 1, 1, 1]),
}
"""The window, the emission, and how often results are sent by each action of a round, after the first round."""


def rig_of(spark, folder, kind: str, keys=(("user", "user"),)) -> Rig:
    window, emission, _ = WAYS[kind]
    aggregates = (agg.sum("x"), agg.count().alias("n"), agg.max("x"))
    step = WindowAggregate(keys=keys, time="at", window=window, aggregates=aggregates, emission=emission)
    return Rig(spark, step, SCHEMA, folder)


def one_round(spark, rig: Rig, number: int, unit: int) -> list[int]:
    """Batches and watermarks over forty units of time, ten of them a window; then all is closed and the stack empty.

    Every result is run as its consumer would. Returns how many were sent by each action.
    """
    start = number * 1_000 * 3_600 * SECOND
    rows = [{"user": f"u{n % 7}", "at": start + n % 40 * unit, "x": n} for n in range(60)]
    sent = []
    for upto in (None, None, 15, None, 25, 1_000):
        with counted(spark) as cost:
            if upto is None:
                rig.wall += 10
                rig.process(rows)
            else:
                rig.advance(start + upto * unit)
        assert cost.jobs == (upto is None)
        sent.append(len([port for port, _ in rig.sent if port == MAIN_PORT]))
        deliver(spark, rig)
    assert rig.operator._stack.height == 0
    return sent


@pytest.mark.parametrize("kind", WAYS)
def test_a_batch_is_one_job_a_result_one_more_without_exchange_and_nothing_is_compiled_once_warm(spark, tmp_path, kind):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path, kind)
    unit = 360 * SECOND if kind == "by the calendar" else SECOND
    for number in (1, 2):
        one_round(spark, rig, number, unit)
    with counted(spark) as warm:
        sent = one_round(spark, rig, 3, unit)
    assert sent == WAYS[kind][2]
    assert warm.compilations == 0
    rig.operator.close()
    assert persistent(spark) <= before


@pytest.mark.parametrize("kind", ["sliding", "cumulative", "updates of panes"])
def test_without_keys_there_is_no_exchange_either(spark, tmp_path, kind):
    rig = rig_of(spark, tmp_path, kind, keys=())
    one_round(spark, rig, 1, SECOND)
    rig.operator.close()
