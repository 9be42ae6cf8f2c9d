"""Whole jobs that are asked for something while they run: by their program, by another process, by another start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import History
from penstock.checkpoint.log import read_history
from penstock.clock import SystemClock
from penstock.control.protocol import Answer, ControlFiles, Request, RequestKind
from penstock.errors import GenerationFenced, JobIsRunning, RequestFailed, RequestRefused
from penstock.facts import BatchDone, CheckpointCompleted, JobStarted
from penstock.failpoints import armed
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import new_id
from penstock.runtime.lifecycle import JobState
from spark.job_kit import PATIENCE, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def endless(out: ps.memory.Sink) -> PipelineDefinition:
    @ps.pipeline("endless")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.generator.Source(lambda frame: frame.selectExpr("n"), per_batch=3)
        p.read("in", source, pace=ps.every("100 ms")).write("out", out)

    return pipeline


class Running:
    """A job that takes no checkpoint unless asked."""

    def __init__(self, spark: SparkSession, state: Path, **options: object) -> None:
        self.spark = spark
        self.watch = Watch()
        self.out = ps.memory.Sink()
        self.state = state
        given: dict[str, object] = {"checkpoint_every": "1 hour"} | options
        self.job = ps.Job(endless(self.out), state=state, spark=spark, listener=self.watch, **given)  # type: ignore[arg-type]
        self.disk = LocalFileSystem(state / "endless")

    def start(self) -> Running:
        self.job.start()
        self.watch.wait_for(BatchDone, 2)
        return self

    @property
    def log(self) -> History:
        return read_history(self.disk, "endless")

    def ask(self, kind: RequestKind, name: str | None = None) -> Answer:
        """As another process would."""
        log = self.log
        generation = log.generation
        assert generation is not None
        files, clock = ControlFiles(self.disk), SystemClock()
        request = Request(
            request=new_id(),
            kind=kind,
            generation=generation,
            asked=clock.wall(),
            owner="tool",
            name=name,
            log_id=log.log_id,
        )
        pause = threading.Event().wait
        files.ask(request, pause=pause)
        answer = files.wait_for_answer(request.request, seconds=PATIENCE, now=clock.now, pause=pause)
        assert answer is not None
        return answer


@contextmanager
def running(spark: SparkSession, state: Path, **options: object) -> Iterator[Running]:
    made = Running(spark, state, **options)
    try:
        yield made.start()
    finally:
        if not made.job.is_over:
            made.job.stop(timeout=PATIENCE)


def test_a_savepoint_of_a_running_job_is_pinned_and_its_name_never_moves(spark: SparkSession, tmp_path: Path) -> None:
    with running(spark, tmp_path) as it:
        first = it.job.savepoint("one", timeout=PATIENCE)
        plain = it.job.checkpoint(timeout=PATIENCE)
        assert plain > first
        with pytest.raises(RequestRefused, match=f"'one' exists already as checkpoint {first}. Choose another"):
            it.job.savepoint("one", timeout=PATIENCE)
        with pytest.raises(RequestRefused, match=f"'one' exists already as checkpoint {first}"):
            it.job.stop(savepoint="one", timeout=PATIENCE)
        assert it.job.state is JobState.RUNNING, "a stop that cannot have its savepoint stops nothing"
        assert it.job.stop(savepoint="last", timeout=PATIENCE)
    pins = it.log.pins
    assert pins["one"].checkpoint == first
    assert pins["last"].checkpoint == it.log.restore_point.checkpoint  # type: ignore[union-attr]
    assert isinstance(it.log.entries[-1].body, Stopped)


def test_127_a_drain_that_comes_after_a_plain_stop_says_that_nothing_was_drained(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path) as it:
        it.job.request_stop()
        it.watch.wait_for(CheckpointCompleted, 2)  # after that of the start, the last: its barriers have left
        for _ in ("while it ends", "once it is over"):
            with pytest.raises(RequestRefused, match=r"Job 'endless' was not drained. Its last checkpoint was begun"):
                it.job.stop(timeout=PATIENCE, drain=True)
        assert it.job.stop(), "a plain stop is harmless, as ever"
    with running(spark, tmp_path) as it:
        assert it.job.stop(timeout=PATIENCE, drain=True)
        assert it.job.stop(drain=True), "it was drained, and a second one is told so"


@pytest.mark.mission("S6", "S7")
def test_another_process_asks_who_runs_takes_a_savepoint_and_stops_the_job(spark: SparkSession, tmp_path: Path) -> None:
    with running(spark, tmp_path) as it:
        me = it.ask(RequestKind.HELLO).me
        assert me is not None
        assert (me.pid, me.state) == (os.getpid(), "running")
        taken = it.ask(RequestKind.SAVEPOINT, "theirs")
        assert (taken.outcome, taken.checkpoint) == (RequestOutcome.DONE, it.log.pins["theirs"].checkpoint)
        assert it.log.pins["theirs"].owner == "tool"
        stopped = it.ask(RequestKind.STOP)
        assert stopped.outcome is RequestOutcome.DONE
        assert it.job.wait(PATIENCE)
        assert it.job.state is JobState.STOPPED
        last = it.log.entries[-1].body
        assert isinstance(last, Stopped)
        assert last.fulfils == (stopped.request,)


@pytest.mark.mission("S3")
def test_L9_a_second_start_is_refused_while_the_first_lives_and_may_take_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path) as it:
        second = ps.Job(endless(ps.memory.Sink()), state=tmp_path, spark=spark)
        second.start()
        with pytest.raises(JobIsRunning, match=rf"'endless' is running already: process {os.getpid()} on .*take_over"):
            second.wait(PATIENCE)
        assert second.state is JobState.FAILED
        assert len(it.log.entries) >= 1
        assert it.job.state is JobState.RUNNING, "the first goes on"
        third = Running(spark, tmp_path, take_over=True).start()
        with pytest.raises(RequestFailed, match="no longer owns the job"):
            it.job.checkpoint(timeout=PATIENCE)
        with pytest.raises(GenerationFenced, match="no longer owns the job"):
            it.job.wait(PATIENCE)
        assert it.job.state is JobState.FENCED
        assert third.job.stop(timeout=PATIENCE)


@pytest.mark.mission("S3")
def test_L9_penstock_run_refuses_at_once_with_exit_69(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "import penstock as ps\n"
        "@ps.pipeline('endless')\n"
        "def endless(p):\n"
        "    p.read('in', ps.rate.Source(rows_per_second=1)).write('out', ps.memory.Sink())\n"
    )
    with running(spark, tmp_path / "state"):
        ended = subprocess.run(
            [sys.executable, "-m", "penstock", "run", "other:endless", "--state", "state"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert ended.returncode == 69, ended.stderr
    assert f"running already: process {os.getpid()}" in " ".join(ended.stderr.split())


def test_C3_a_savepoint_whose_attempt_breaks_after_its_manifest_is_found_by_the_next_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path) as it:
        it.job.checkpoint(timeout=PATIENCE)
        with armed("checkpoint.manifest.written", "error:EIO"):
            taken = it.job.savepoint("one", timeout=PATIENCE)
        assert it.log.pins["one"].checkpoint == taken
        it.watch.wait_for(JobStarted, attempt=2)


def test_a_savepoint_that_a_failure_prevents_is_answered_with_the_cause_and_can_be_asked_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path, tolerated_failures=0) as it:
        with armed("sink.prepared", "error:EIO"), pytest.raises(RequestFailed, match=r"savepoint\(\) of job 'endless'"):
            it.job.savepoint("one", timeout=PATIENCE)
        assert it.log.pins == {}
        taken = it.job.savepoint("one", timeout=PATIENCE)
        assert [fact.kind for fact in it.watch.of(CheckpointCompleted, checkpoint=taken)] == ["savepoint"]
