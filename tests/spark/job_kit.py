"""What tests of whole jobs share: a listener to wait on, and a count of Spark jobs taken from outside penstock."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from window_harness import jobs_of, next_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from penstock.facts import Fact

PATIENCE = 240
"""Seconds a test waits for a fact on a busy machine; nothing passes by reaching it."""


class Watch:
    """A listener that keeps facts and lets a test wait for them."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._changed = threading.Condition()

    def __call__(self, fact: Fact) -> None:
        with self._changed:
            self.facts.append(fact)
            self._changed.notify_all()

    def wait_for(self, kind: type, count: int = 1, **fields: object) -> Any:
        """The ``count``-th fact of a kind whose fields have these values."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind, **fields)) >= count, timeout=PATIENCE), self.facts
        return self.of(kind, **fields)[count - 1]

    def of(self, kind: type, **fields: object) -> list[Any]:
        """The facts of a kind whose fields have these values, in order."""
        found = [fact for fact in list(self.facts) if isinstance(fact, kind)]
        return [fact for fact in found if all(getattr(fact, name) == value for name, value in fields.items())]


class Jobs:
    """Counts Spark jobs by group with Spark's own status tracker; a task's thread sets its name as the group."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._since = next_job(spark)

    def of(self, task: str) -> int:
        """How many jobs the task's data path has run since this counter was made."""
        return jobs_of(self._spark, f"penstock-{task}", since=self._since)


def drop(folder: Path, name: str, rows: Iterable[Mapping[str, object] | str]) -> None:
    """Put a file of JSON lines into a watched directory, whole at once."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    hidden.rename(folder / name)


def published(folder: Path) -> list[dict[str, Any]]:
    """The rows of all visible JSON files below a folder; of a job that runs, too: hidden folders come and go."""
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if name.endswith(".json") and not name.startswith(".")]
    return [json.loads(line) for path in sorted(files) for line in path.read_text().splitlines()]
