"""All aggregates over sessions, against Spark's own over all rows at once."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pytest

from aggregate_cases import NAMES, SCHEMA, SECOND, assert_same, expected, step
from penstock.clock import MAX_WATERMARK
from penstock.operators.windows.assigners import session
from window_harness import Rig

pytestmark = pytest.mark.spark

GAP, JITTER = 5, 8
DOUBLES = [None, 0.0, -0.0, math.nan, math.inf, 1.5, -2.25, 1e9, 0.1]
TEXTS = [None, "", "p", "q", "k" * 300]


def row(chance: random.Random, second: float) -> dict[str, object]:
    return {
        "user": chance.choice([None, "", "a"]),
        "at": round(second * SECOND),
        "x": chance.choice([None, *range(-3, 9)]),
        "d": chance.choice(DOUBLES),
        "f": chance.choice([None, 0.0, math.nan, -2.5, 16.0]),
        "m": chance.choice([None, Decimal("1.10"), Decimal("-99999999.99"), Decimal("0.01")]),
        "s": chance.choice(TEXTS),
    }


@pytest.mark.parametrize("names", [NAMES[::2], NAMES[1::2]], ids=["some", "others"])
def test_whatever_puts_rows_into_sessions_the_results_are_those_of_sql(spark, tmp_path, names):
    """Rows between two sessions, sessions over several batches, merges, and a restore with other partitions."""
    chance = random.Random(7)
    rig = Rig(spark, step(names, session(f"{GAP} seconds")), SCHEMA, tmp_path)
    all_rows, found = [], []
    for number in range(6):
        clock = number * 12
        batch = [row(chance, clock + chance.randrange(-JITTER * 4, 12 * 4) / 4) for _ in range(8)]
        all_rows += batch
        rig.process(batch)
        if number == 3:
            rig = rig.again(rig.checkpoint(), partitions=3)
        rig.advance((clock + 12 - JITTER) * SECOND)
        found += rig.take()
    assert found, "some have ended before the end"
    rig.advance(MAX_WATERMARK)
    found += rig.take()
    rig.operator.close()
    assert "late" not in rig.counts
    assert_same(found, expected(spark, all_rows, names, gap=GAP), names)
