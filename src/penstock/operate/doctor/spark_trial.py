"""Makes a session as ``penstock run`` does, runs a job with Python workers, prints what it was like as JSON.

``python -m penstock.operate.doctor.spark_trial`` shows what Spark says when it cannot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from penstock.job.session import cores_of, make_session
from penstock.runtime.clock import SystemClock


def main() -> int:
    """One session, one job."""
    clock = SystemClock()
    before = clock.now()
    spark = make_session("doctor")
    try:

        def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches

        rows = spark.range(1_000).mapInArrow(pass_on, "id LONG").count()
        told = {
            "version": spark.version,
            "cores": cores_of(spark),
            "rows": rows,
            "seconds": (clock.now() - before) / 1_000_000,
        }
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
