"""Jobs under changed code: what is refused before anything happens, steps with another uid, settings, sources."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.control.client import JobDirectory
from penstock.errors import StateIncompatible, UnknownName
from spark.job_kit import drop, published
from spark.testing_kit import CLICKS, NOWHERE, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id LONG, user STRING, at TIMESTAMP"


def rows(*ids: int) -> list[dict[str, object]]:
    return [{"id": n, "user": f"u{n % 2}", "at": f"2026-01-01T00:00:{n:02}Z"} for n in ids]


def counting(folder: Path, *, key: str = "user", minutes: int = 1, source: Any = None) -> ps.PipelineDefinition:
    @ps.pipeline("counting")
    def pipeline(p: ps.Pipeline) -> None:
        read = p.read("in", source or ps.files.Source(folder / "in", schema=SCHEMA))
        timed = read.with_watermark("at", delay="0 seconds")
        found = timed.group_by(key, ps.tumbling(f"{minutes} minutes")).agg("counts", ps.agg.count().alias("n"))
        found.write("out", ps.files.Sink(folder / "out", format="json"))

    return pipeline


def everything(folder: Path) -> dict[str, str]:
    """Every file with what is in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.mission("D7")
def test_what_cannot_be_restored_is_refused_before_a_claim_a_publication_and_a_spark_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    drop(tmp_path / "in", "a.json", rows(1, 2, 3))
    ps.Job(counting(tmp_path), state=tmp_path / "state", spark=spark).run(until="caught-up")
    before, scheduler = everything(tmp_path), spark.sparkContext._jsc.sc().dagScheduler()
    jobs = scheduler.numTotalJobs()
    for changed, told in [
        (counting(tmp_path, key="id"), r"step 'counts': Checkpoint \d+: .*The keys were user string and are id bigint"),
        (counting(tmp_path, minutes=2), r"step 'counts': .*'tumbling 1 minute', but the pipeline declares 'tumbling 2"),
        (counting(tmp_path, source=numbers()), r"step 'in': .*of kind 'files/1', and this source reads 'generator/1'"),
    ]:
        with pytest.raises(StateIncompatible, match=told):
            ps.Job(changed, state=tmp_path / "state", spark=spark).run(until="caught-up")
    with pytest.raises(UnknownName, match=r"The pipeline has no step 'counts2'. Did you mean 'counts'"):
        ps.Job(counting(tmp_path), state=tmp_path / "state", spark=spark, rename={"sums": "counts2"}).run()
    assert everything(tmp_path) == before
    assert scheduler.numTotalJobs() == jobs


def numbers() -> Any:
    """Another kind of source, of the same columns."""
    columns = ("n AS id", "CAST(n AS STRING) AS user", "timestamp_seconds(n) AS at")
    return ps.generator.Source(lambda frame: frame.selectExpr(*columns), rows=3)


def test_the_example_of_the_page_on_upgrades_runs(spark: SparkSession) -> None:
    page = Path(__file__).parents[2] / "docs" / "upgrades.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    module = ModuleType("upgrades_example")
    exec(compile(code, str(page), "exec"), vars(module))  # the page is ours
    module.test_the_new_code_goes_on_with_the_old_state(spark)


@pytest.mark.mission("D9")
def test_the_settings_of_the_new_submission_win(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", rows(1, 2, 3))
    seldom = {"checkpoint_every": "1 hour"}  # but for the first and the last, however slow the machine
    for retained, left in [(5, 2), (1, 1)]:
        job = ps.Job(counting(tmp_path), state=tmp_path / "state", spark=spark, retained=retained, **seldom)
        job.run(until="caught-up")
        assert len(JobDirectory(str(tmp_path / "state"), "counting").read().restorable) == left
    assert published(tmp_path / "out") == []


def version(number: int, *, sources: tuple[str, ...], step: str, sink: str) -> ps.PipelineDefinition:
    @ps.pipeline("clicks")
    def clicks(p: ps.Pipeline) -> None:
        first, *others = [p.read(uid, ps.files.Source(NOWHERE, schema=CLICKS)) for uid in sources]
        stream = (first.union(*others) if others else first).with_watermark("at", delay="0 seconds")
        more = (ps.agg.last("user").alias("newest"),) if number > 1 else ()
        found = stream.group_by("user", ps.tumbling("1 minute")).agg(step, ps.agg.count().alias("n"), *more)
        found.write(sink, ps.memory.Sink())

    return clicks


@pytest.mark.mission("D7")
def test_renamed_steps_keep_their_state_through_crashes_and_a_source_more_disturbs_none(spark: SparkSession) -> None:
    first = version(1, sources=("a", "b"), step="counts", sink="out")
    second = version(2, sources=("new", "b", "clicks"), step="sums", sink="sums-out")
    names = {"a": "clicks", "counts": "sums", "out": "sums-out"}
    with ps.testing.run(first, spark) as t:
        t.send("a", [at("u", 0, 1)])
        t.send("b", [at("u", 0, 2), at("v", 0)])
        t.checkpoint()
        t.send("a", [at("u", 0, 3)])
        t.crash()
        with pytest.raises(StateIncompatible, match=r"holds state of 'a', 'counts', .*--rename OLD=NEW"):
            t.restart(second)
        t.restart(second, rename=names)
        t.crash()  # no checkpoint has the new names yet
        t.restart(rename=names)
        t.send("new", [at("v", 0, 4)])
        t.checkpoint()
        t.crash()
        t.restart(rename=names)
        t.crash()
        t.restart()
        t.send("clicks", [at("u", 0, 9)])
        t.end()
        assert sorted(t.rows("sums-out", "user", "n", "newest"), key=lambda row: row["user"]) == [
            {"user": "u", "n": 4, "newest": "u"},
            {"user": "v", "n": 2, "newest": "v"},
        ]
        assert t.rows("out") == []
