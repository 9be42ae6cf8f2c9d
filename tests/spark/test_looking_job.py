"""Numbers of a real run: those of its report, of the file that it leaves and of every command are the same."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.filesystem.local import LocalFileSystem
from penstock.observability.status_file import read_status_file
from spark.job_kit import drop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.observability.report import Report

pytestmark = pytest.mark.spark


def pipeline(home: Path) -> PipelineDefinition:
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        lines = p.read("lines", ps.files.Source(str(home / "in"), format="text"))
        parsed, bad = lines.parse_json("value", "user STRING, at TIMESTAMP", on_error="split")
        bad.write("bad-out", ps.files.Sink(str(home / "bad"), format="json"))
        counts = (
            parsed.with_watermark("at", delay="5 seconds")
            .group_by("user", ps.tumbling("1 minute"))
            .agg("counts", ps.agg.count().alias("n"))
        )
        counts.write("out", ps.files.Sink(str(home / "out"), format="json"))
        counts.late.write("late-out", ps.files.Sink(str(home / "late"), format="json"))

    return orders


def told(home: Path, *words: str) -> dict[str, object]:
    out = io.StringIO()
    code = dispatch([*words, "--state", str(home / "state"), "--json"], Output(out=out, err=io.StringIO()))
    assert code == 0, out.getvalue()
    found: dict[str, object] = json.loads(out.getvalue())
    return found


def run(home: Path, spark: SparkSession) -> Report:
    return ps.Job(pipeline(home), state=home / "state", spark=spark).run(until="caught-up")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Path, Report]:
    """Where two runs were, and the report of the second, which had late rows, and a bad one."""
    home = tmp_path_factory.mktemp("looking")
    drop(home / "in", "a.json", [{"user": "u1", "at": f"2026-01-01T00:0{n}:00Z"} for n in range(5)])
    run(home, spark)
    late = [{"user": "u2", "at": "2026-01-01T00:00:30Z"}, {"user": "u2", "at": None}]
    drop(home / "in", "b.json", ["no json", *late, {"user": "u2", "at": "2026-01-01T00:07:00Z"}])
    return home, run(home, spark)


def test_a_report_the_file_that_a_run_leaves_and_all_commands_have_the_same_numbers(ran: tuple[Path, Report]) -> None:
    home, report = ran
    hint = read_status_file(LocalFileSystem(home / "state" / "orders"))
    assert hint is not None
    assert hint.report == report
    status, listed = told(home, "status", "orders"), told(home, "list")
    aside = told(home, "late", "orders")["put_aside"]
    assert status["is"] == listed["jobs"][0]["is"] == "stopped"  # type: ignore[index]
    told_of = status["run"]
    assert isinstance(told_of, dict)
    assert {each["uid"]: each["rows_read"] for each in told_of["sources"]} == report.rows_read == {"lines": 4}
    assert {each["uid"]: each["rows_written"] for each in told_of["sinks"]} == report.rows_written
    assert told_of["checkpoint_count"] == report.checkpoints
    marks = {each["uid"]: each["watermark"] for each in told_of["steps"]}
    assert marks["counts"] == report.watermarks["counts"]
    assert isinstance(aside, list)
    found = {(each["kind"], each["step"]): (each["rows"], [sink["uid"] for sink in each["sinks"]]) for each in aside}
    assert found == {
        ("bad", "parse_json value"): (1, ["bad-out"]),
        ("late", "counts"): (report.counters["counts", "late"], ["late-out"]),
    }
    causes = {each["cause"]: each["rows"] for each in next(e for e in aside if e["kind"] == "late")["causes"]}
    assert causes == {"below the watermark": 1, "no event time": 1}
    assert report.rows_written["late-out"] == 2


def test_a_real_job_is_sound_and_each_of_its_files_has_an_owner(ran: tuple[Path, Report]) -> None:
    home, _ = ran
    verdict, owned = told(home, "verify", "orders"), told(home, "gc", "orders", "--dry-run")

    assert verdict["is_sound"] is True
    assert verdict["file_count"]
    known = {"checkpoint", "output", "log", "control", "orphan", "condemned"}
    assert {each["owner"] for each in owned["sums"]} <= known  # type: ignore[attr-defined]
    one = told(home, "checkpoint", "orders", str(verdict["restore_point"]))
    assert one["is_restore_point"] is True
    assert one["state_bytes"] == told(home, "status", "orders")["state_bytes"]


def test_a_flipped_byte_in_a_real_layer_is_found(ran: tuple[Path, Report], tmp_path: Path) -> None:
    shutil.copytree(ran[0] / "state", tmp_path / "state")
    layers = sorted((tmp_path / "state" / "orders" / "state").rglob("*.parquet"))
    content = bytearray(layers[-1].read_bytes())
    content[len(content) // 2] ^= 1
    layers[-1].write_bytes(content)
    out = io.StringIO()

    code = dispatch(["verify", "orders", "--state", str(tmp_path / "state")], Output(out=out, err=io.StringIO()))

    assert code == 1
    assert "has other content than was written" in out.getvalue()
    assert "remedy: put the files back from a copy" in out.getvalue()
