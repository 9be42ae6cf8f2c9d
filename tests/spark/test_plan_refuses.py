"""``penstock plan`` refuses what ``penstock run`` refuses, where Spark's analyser or a job that has run is needed.

The stories without Spark are in tests/core/test_plan_refuses.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from core.cli_kit import say
from core.test_plan_refuses import first_line
from penstock.cli.options import load_pipeline
from spark.job_kit import drop
from spark.test_plan_job import V1, order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A story that makes a start refuse.

    Attributes:
        code: the exit code.
        says: a part of its first line.
        before: the pipeline that ran before; ``None`` for a new job.
        story: what happens then.
        source: the pipeline that is to start.
    """

    code: int
    says: str
    before: str | None = None
    story: Callable[[Path], object] = lambda folder: None
    source: str = V1


def change(*pairs: tuple[str, str]) -> str:
    source = V1
    for before, after in pairs:
        assert before in source
        source = source.replace(before, after)
    return source


def drain(folder: Path) -> None:
    """The source ends for good, as ``penstock stop --drain`` has it, and another file comes."""
    job = ps.Job(load_pipeline("shop_before:shop"), state="state")
    job.start()
    job.stop(drain=True)
    drop(folder / "in", "b.json", [order(3)])


STORIES = {
    "a column that no step has": Refusal(
        code=65, says="mount", source=change(('ps.agg.sum("amount")', 'ps.agg.sum("amout")'))
    ),
    "a sink that cannot hold the columns": Refusal(
        code=65,
        says="Format 'text' writes one STRING column",
        source=change(('"archive", format="json"', '"archive", format="text"')),
    ),
    "files without columns to take": Refusal(
        code=65,
        says="has no file to take the columns from",
        source=change(
            ('"in", format="json", schema="user STRING, amount LONG, at TIMESTAMP"', '"none", format="parquet"')
        ),
        story=lambda folder: (folder / "none").mkdir(),
    ),
    "a folder of Parquet files that is missing": Refusal(
        code=65,
        says="none' does not exist. Create it, mount it or correct the path",
        source=change(
            ('"in", format="json", schema="user STRING, amount LONG, at TIMESTAMP"', '"none", format="parquet"')
        ),
    ),
    "state that does not fit": Refusal(
        code=65,
        says="Put the old one back",
        before=V1,
        source=change(('ps.tumbling("1 minute")', 'ps.tumbling("2 minutes")')),
    ),
    "a file that was read and has changed": Refusal(
        code=1,
        says="File 'a.json' was read as",
        before=V1,
        story=lambda folder: drop(folder / "in", "a.json", [order(7), order(8)]),
    ),
    "a state directory that was lost": Refusal(
        code=65,
        says="of another log (",
        before=V1,
        story=lambda folder: (folder / "state").rename(folder / "lost"),
    ),
    "a drained job with rows waiting": Refusal(code=65, says="ended in an earlier run", before=V1, story=drain),
}


@pytest.mark.parametrize("case", STORIES)
def test_a_plan_refuses_what_a_start_refuses_with_the_same_code_and_words(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    refusal = STORIES[case]
    monkeypatch.chdir(tmp_path)
    drop(tmp_path / "in", "a.json", [order(0), order(1)])
    name = "refused_" + re.sub(r"\W", "_", case)
    (tmp_path / f"{name}.py").write_text(refusal.source)
    if refusal.before is not None:
        (tmp_path / "shop_before.py").write_text(refusal.before)
        monkeypatch.delitem(sys.modules, "shop_before", raising=False)
        assert say("run", "shop_before:shop", "--state", "state", "--no-parent", "--until", "caught-up").code == 0
    refusal.story(tmp_path)

    planned = say("plan", f"{name}:shop", "--state", "state")
    started = say("run", f"{name}:shop", "--state", "state", "--no-parent", "--until", "caught-up")

    assert refusal.says in first_line(started)
    assert started.code == refusal.code
    assert (planned.code, first_line(planned)) == (started.code, first_line(started))
