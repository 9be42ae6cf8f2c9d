"""Short forms of ``make bench-checkpoint``, ``make bench-start`` and ``make soak``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from bench import checkpoint, soak, start  # noqa: E402 - found through the path above
from bench.checkpoint_job import Told, pipeline, rewritten  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.state.stack import STOP_LIMIT  # noqa: E402
from window_harness import persistent  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEYS, CHANGES = 20_000, 16_000

CHECKPOINTS, INTERVALS = 20, 3
"""A merge of all layers comes round in so many checkpoints, also if layers in memory count most keys three times over
meanwhile. On a busy machine they count them six times over: then it comes in a later interval.
"""


def begun(spark, folder: Path, phase: str) -> tuple[ps.Job, checkpoint.Story]:
    story = checkpoint.Story()
    told = Told(KEYS, story.add)
    job = ps.Job(
        pipeline(KEYS, phase, CHANGES), state=folder / "state", spark=spark, listener=told, checkpoint_every="500 ms"
    )
    job.start()
    return job, story


@pytest.mark.long
@pytest.mark.usefixtures("eight_of_a_size")
def test_half_as_much_again_is_written_as_keys_change_at_most(spark, tmp_path):
    """By checkpoints, between which a third of the keys changes, and by the merges that come round: at least one."""
    filling, story = begun(spark, tmp_path, "fill")
    story.wait("loaded", 1)
    filling.stop()
    files = checkpoint.Files(tmp_path / "state")
    changing, story = begun(spark, tmp_path, "change")
    story.wait("checkpoint", 2)
    for _ in range(INTERVALS):
        taken = checkpoint.interval(story.wait, story, files, CHECKPOINTS)
        # A checkpoint that is under way at the end has written bytes of its own that no manifest lists yet.
        if taken.written > (1 + 1.5 / CHECKPOINTS) * taken.by_checkpoints:
            break
    changing.stop()
    files.end()
    assert len(taken.durations) == len(taken.stalls) == len(taken.rows) == CHECKPOINTS
    assert len(taken.beside) > 0
    a_key = rewritten(spark, tmp_path / "state", tmp_path / "live") / KEYS
    changed = a_key * taken.changed(KEYS)
    assert 0.8 * changed <= taken.by_checkpoints <= 1.2 * changed, "a checkpoint writes what has changed, once"
    assert taken.written > taken.by_checkpoints + 0.8 * a_key * KEYS, "no merge came round"
    assert taken.written <= 1.5 * changed


def test_a_short_soak_sees_windows_come_and_go_and_nothing_grow(spark, tmp_path):
    before = len(persistent(spark))
    pace = soak.Pace(batches=10, rows=200, window="500 ms", checkpoint_every="500 ms", warm=40)
    samples, batches = soak.measure(spark, tmp_path, pace, 9)
    figures = soak.judge(samples)
    assert {"p99_growth", "heap_growth", "rdds_max", "files_max"} <= figures.keys()
    assert batches.restarts == []
    assert len(samples) == 3
    assert all(sample["batches"] > 0 for sample in samples)
    assert len(batches.done) > 40
    assert 0 < figures["rdds_max"] <= before + STOP_LIMIT + 8, "one for each batch, if none were freed"
    assert 0 < figures["files_max"] <= 40
    assert abs(figures["threads_growth"]) <= 20
    counted = {name: samples[0][name] for name in ("classes", "accumulators", "java_objects", "python_objects")}
    assert all(number > 0 for number in counted.values()), counted


def test_files_do_not_pile_up_where_half_of_all_checkpoints_and_pieces_fail(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.state.compaction.PIECE_ROWS", 300)
    monkeypatch.setattr("penstock.state.durable.PIECE_SHARE", 1e-9)
    pace = soak.Pace(rows=200, window="2 seconds", checkpoint_every="1 second", warm=20, keys=100_000, fails=True)
    samples, batches = soak.measure(spark, tmp_path, pace, 9)
    assert batches.failed >= 2
    assert batches.restarts == []
    assert max(sample["files"] for sample in samples) <= 80


def test_what_grows_is_seen_by_the_soak():
    names = (
        "batches",
        "p99_ms",
        "heap_mb",
        "classes",
        "accumulators",
        "java_objects",
        "python_objects",
        "rdds",
        "files",
        "python_mb",
        "jvm_threads",
        "python_threads",
        "open_files",
    )
    samples = [dict.fromkeys(names, 10.0 * third) for third in (1, 2, 3)]
    figures = soak.judge(samples)
    growth = {name: value for name, value in figures.items() if name.endswith("_growth")}
    assert growth.pop("threads_growth") == 40
    assert growth.pop("open_files_growth") == 20
    assert set(growth.values()) == {3.0}
    assert (figures["rdds_max"], figures["files_max"]) == (30, 30)


@pytest.mark.timeout(900)  # nine commands that start Spark, and one that makes the archive
def test_a_short_start_compares_commands_that_publish_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # it has the archive that tests are run with
    seconds = start.measure(tmp_path, 2, "local[2]", tell=lambda _: None)
    assert {name: len(values) for name, values in seconds.items()} == {start.OURS: 2, start.BARE: 2, start.THEIRS: 2}
    figures = start.figures_of(seconds)
    assert {"start_ratio", "archive_ratio"} <= figures.keys()
    assert 0 < figures["start_ratio_least"] <= figures["start_ratio"] <= figures["start_ratio_most"]
