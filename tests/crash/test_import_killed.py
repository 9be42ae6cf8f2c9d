"""Starts from an exported checkpoint that are killed at each of their steps, and copies that live beside a first job.

Each is ``penstock run`` in a process of its own, with its JVM. 17 is the hole of the protocol for forks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress

import pytest

from crash.driver import Driver, all_gone, surroundings
from crash.input_files import InputFiles
from crash.verdict import PUBLISHED, judge
from oracle.windows import FLUSH
from penstock.admin.export import verify_export
from penstock.checkpoint.export import decode_claimed
from penstock.control.client import JobDirectory
from penstock.elements import CheckpointKind

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

START = 240
"""Seconds for a driver to start, on a machine that others use too."""

NOTHING_SAID, CLAIMED, IN_THE_LOG, RELEASED = "nothing said", "claimed", "in the log", "released"
"""What is true of folder and log after a kill, each with what was true before it."""

COPYING = [("import.file.before", 1), ("import.file.copied", 1), ("checkpoint.manifest.before", 1)]
STEPS = {
    False: [
        *((place, hit, NOTHING_SAID) for place, hit in COPYING),
        ("checkpoint.manifest.written", 1, IN_THE_LOG),
        ("recovery.restored", 1, IN_THE_LOG),
    ],
    True: [
        ("import.file.copied", 1, NOTHING_SAID),
        ("import.claimed", 1, CLAIMED),
        ("checkpoint.manifest.before", 1, CLAIMED),
        ("checkpoint.manifest.written", 1, IN_THE_LOG),
        ("import.release.before", 1, IN_THE_LOG),
        ("import.release.before", 2, IN_THE_LOG),
        ("recovery.restored", 1, RELEASED),
    ],
}
"""By whether the folder is claimed, where a start is killed; the next start, with the same words, comes to the next."""

SHORT = {"import.claimed", "checkpoint.manifest.written", "import.release.before"}
"""Where it is killed unless there is time for all: where what is true of folder and log changes."""


@contextmanager
def living(home, number, *arguments, **options):
    driver = Driver(home, number, "--until", "caught-up", *arguments, **options)
    try:
        yield driver
    finally:
        driver.end()
        assert all_gone(home) == 0


def ends(home, number, *arguments, code=0, **options):
    """A start that is left alone; what it said."""
    with living(home, number, *arguments, **options) as driver:
        assert driver.wait(START) == code, driver.tail()
        return driver.said


def is_killed(home, number, *arguments, at, hit=1, **options):
    with living(home, number, *arguments, pause_at=at, hit=hit, **options) as driver:
        assert driver.reaches(START), driver.tail()
        assert driver.kill("group") == -9


def told(home, *words):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--state", "state"],
        cwd=home,
        env=surroundings(home),
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def log(home, state):
    return JobDirectory(home / state, "torture").read()


def brought(history):
    """The checkpoints that came from a folder."""
    return [manifest for _, manifest in history.manifests.values() if manifest.kind is CheckpointKind.IMPORT]


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def days(folder):
    """By user, what was counted in the first day; there is one row of each."""
    found = [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    of_the_day = [(row["user"], row["n"]) for row in found if row["day"].startswith("2026-01-01")]
    assert len({user for user, _ in of_the_day}) == len(of_the_day)
    return Counter(dict(of_the_day))


def first_day(folder):
    counts = Counter()
    for line in lines(folder.parent):
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row["amount"], float) and row["at"].startswith("2026-01-01"):
                counts[row["user"]] += 1
    return counts


# -------------------------------------------------------------------------------------- killed at each step of a start


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A job with windows that are open, which has published others, and its newest checkpoint as a folder."""
    home = tmp_path_factory.mktemp("import")
    files = InputFiles(home / "in", seed=11)
    files.drop(12)
    ends(home, 0, pipeline="copied_job:job")
    told(home, "savepoint", "export", "torture", str(log(home, "state").restore_point.checkpoint), "export")
    assert len(verify_export(home / "export").files) > 1
    files.drop(4)
    files.drop_flush(FLUSH)
    return home, files


@pytest.mark.parametrize(
    ("claim", "every"),
    [(True, False), *(pytest.param(claim, True, marks=pytest.mark.long) for claim in (False, True))],
)
def test_a_start_that_is_killed_at_each_step_of_an_import_goes_on_with_the_same_words(exported, claim, every):
    home, files = exported
    name = f"{'claimed' if claim else 'copied'}{'-everywhere' if every else ''}"
    folder, options = shutil.copytree(home / "export", home / f"export-{name}"), {"pipeline": "copied_job:job"}
    options["environment"] = {"TORTURE_OUT": f"of-{name}"}
    whole = content(folder)
    words = ["--from", f"./{folder.name}", *(["--claim"] if claim else [])]

    steps = [step for step in STEPS[claim] if every or (step[0] in SHORT and step[1] == 1)]

    for number, (place, hit, stands) in enumerate(steps, 100 * (1 + claim + 2 * every)):
        is_killed(home, number, *words, at=place, hit=hit, state=name, **options)
        check(home, name, folder, whole, stands, claim=claim)
        if place == "import.claimed":
            said = ends(home, 900 + every, *words, state="another", code=65, **options)
            assert f"The files of {folder} belong to job 'torture'" in said
        if stands in (IN_THE_LOG, RELEASED):
            assert log(home, name).restore_point == brought(log(home, name))[0]
    ends(home, number + 1, *words, state=name, **options)

    check(home, name, folder, whole, RELEASED if claim else IN_THE_LOG, claim=claim)
    verdict = judge(together(home, name), files)
    assert verdict.problems == []
    assert verdict.windows > 0
    assert days(home / f"of-{name}" / "days") == first_day(home / "in")


def check(home, state, folder, whole, stands, *, claim):
    """The folder is as it was or belongs to this log alone, and the log has all of the checkpoint or nothing of it."""
    history, now = log(home, state), content(folder)
    is_in_the_log = stands in (IN_THE_LOG, RELEASED)
    assert len(brought(history)) == is_in_the_log, "never twice"
    assert bool(history.manifests) == is_in_the_log
    if not claim or stands == NOTHING_SAID:
        assert now == whole, "untouched"
        return
    assert decode_claimed(now.pop("claimed.json"), "").log_id == history.log_id
    if stands == CLAIMED:
        assert now == whole, "its files stay until they are this log's"
    elif stands == RELEASED:
        assert list(now) == ["export.json"]
    else:
        assert now.items() <= whole.items()


def together(home, name):
    """What the first job had published when it was exported, and what came of the copy, as one job's output."""
    made = home / f"all-{name}"
    made.mkdir()
    (made / "in").symlink_to(home / "in")
    for folder in PUBLISHED:
        (made / folder).mkdir()
        for path in (*(home / folder).glob("part-*"), *(home / f"of-{name}" / folder).glob("part-*")):
            shutil.copy(path, made / folder)
    return made


# ------------------------------------------------------------------------------------- beside output that is still open


@pytest.fixture
def owing(tmp_path):
    """A job that was killed with a checkpoint in the log whose output is not published, and the export of that."""
    InputFiles(tmp_path / "in", seed=3).drop(2)
    is_killed(tmp_path, 0, at="sink.commit.before", pipeline="plain_job:job")
    newest = log(tmp_path, "state").restore_point
    assert newest.open
    said = told(tmp_path, "savepoint", "export", "torture", str(newest.checkpoint), "export")
    assert "the log does not know 1 output of it to be published" in said
    return tmp_path


def lines(home):
    return Counter(line for path in (home / "in").glob("part-*.jsonl") for line in path.read_text().splitlines())


def rows(folder):
    paths = folder.glob("part-*")
    return Counter(json.loads(line)["value"] for path in paths for line in path.read_text().splitlines())


def test_17_what_is_open_when_it_is_copied_is_published_by_the_first_job_alone_and_the_rest_by_each(owing):
    before = lines(owing)
    InputFiles(owing / "in", seed=4, files=2).drop(1)
    after = lines(owing) - before
    options = {"pipeline": "plain_job:job", "state": "copy", "environment": {"TORTURE_OUT": "copied"}}

    is_killed(owing, 1, "--from", "./export", at="checkpoint.manifest.written", **options)
    assert log(owing, "copy").log_id != log(owing, "state").log_id
    assert log(owing, "copy").open_committables == ()
    ends(owing, 2, "--from", "./export", **options)

    assert rows(owing / "copied" / "out") == after
    assert rows(owing / "out") == Counter(), "the copy has published nothing of the first job's"
    ends(owing, 3, pipeline="plain_job:job")
    assert rows(owing / "out") == before + after, "the first job publishes all of its own, once"
    assert rows(owing / "copied" / "out") == after


@pytest.mark.long
def test_killed_beside_state_whose_output_is_open_it_publishes_that_once_and_then_begins_with_the_folder(owing):
    before, words = lines(owing), ("--from", "./export")
    options = {"pipeline": "plain_job:job"}

    is_killed(owing, 1, *words, at="sink.published", **options)
    assert rows(owing / "out") == before
    for number, place in enumerate(("recovery.committed", "checkpoint.manifest.before"), 2):
        is_killed(owing, number, *words, at=place, **options)
        assert brought(log(owing, "state")) == []
    is_killed(owing, 4, *words, at="checkpoint.manifest.written", **options)
    InputFiles(owing / "in", seed=4, files=2).drop(1)
    ends(owing, 5, *words, **options)

    assert len(brought(log(owing, "state"))) == 1
    assert rows(owing / "out") == lines(owing), "none lost, none twice"
