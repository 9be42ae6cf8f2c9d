"""The command lines of the pages on savepoints, plans, shadow runs and upgrades, and of the page on the command line.

Each is run as it stands, on the directory of one small job: by its own command line, in this process, on the session
of this run. What pages show as said is what is said then.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.cli_kit import Said, Terminal
from crash.driver import all_gone, surroundings
from crash.waiting import holds_within
from page_kit import blocks, command_lines, sample, shows
from spark.job_kit import drop, published
from spark.shop_kit import RENAMED, SECOND, SHOP_V2, THIRD, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGES = ("cli.md", "savepoints.md", "plan.md", "shadow.md", "upgrades.md")
LINES = [line for page in PAGES for line in command_lines(page)]

PARTS = {
    "plan": r"plan |run .*--plan ",
    "names": r"savepoint (create|list|show|drop) ",
    "stop": r"stop |run .*--checkpoint-every ",
    "settle": r"settle ",
    "rewind": r"rewind ",
    "begin": r"savepoint export |run .*--from ",
    "shadow": r"shadow ",
    "rename": r"run .*--rename ",
    "look": r"checkpoints |state |deadletter |run .*--until caught-up",
    "project": r"init |test ",
}
"""Which lines a test runs."""


def part(name: str) -> list[str]:
    return [line for line in dict.fromkeys(LINES) if re.match(f"penstock ({PARTS[name]})", line)]


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    penstock, root = logging.getLogger("penstock"), logging.getLogger()
    before = penstock.propagate, penstock.handlers[:], root.filters[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop.home)
        patch.syspath_prepend(shop.home)
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(sys, "stdin", Terminal("y\n" * 99))  # somebody who says yes to what asks
        patch.setenv("SPARK_SUBMIT_OPTS", "")
        shop.open()
        yield shop
    for name in ("shop", "shop_v2", "alarms_mended"):
        sys.modules.pop(name, None)
    penstock.propagate, penstock.handlers, root.filters = before


@pytest.fixture
def shop(made: Shop) -> Shop:
    """The job at rest: checkpoint 2 is its newest, 1 is the savepoint ``before-v2``, and a file waits."""
    made.back("stopped")
    return made


def ends_with(said: Said, code: int = 0) -> Said:
    assert said.code == code, f"{said.out}\n{said.err}"
    return said


def test_every_line_of_the_pages_is_run() -> None:
    unrun = [line for line in LINES if sum(line in part(name) for name in PARTS) != 1]
    assert unrun == []
    assert len(set(LINES)) > 40


def test_a_plan_says_what_the_page_shows_and_is_outdated_by_a_name(shop: Shop) -> None:
    shop.back("killed")
    shop.deploy(SHOP_V2)
    text, saved, run = [line for line in part("plan") if " --from " not in line]
    said = ends_with(shop.run(text), 2).out
    said = re.sub(r"^  stop_timeout is .*, and a recent checkpoint took .*\n", "", said, flags=re.M)  # a slow machine
    shows(sample("plan.md", "orders: a start would restore"), said, shop=shop.home)

    ends_with(shop.run(saved), 2)
    assert "totals" in json.loads((shop.home / "plan.json").read_text())["code"]
    shop.without_input(2)
    assert "restoring from checkpoint 2" in ends_with(shop.run(run)).err

    ends_with(shop.run(saved), 0)
    ends_with(shop.run("penstock savepoint create orders more"))
    assert "The log has moved: entries after" in ends_with(shop.run(run), 65).err
    assert "savepoint more" in shop.run(run).err


def test_a_plan_to_begin_with_an_export_says_what_is_brought_in(shop: Shop) -> None:
    lines = [line for line in part("plan") if " --from " in line]
    assert len(lines) == 2
    ends_with(shop.run("penstock savepoint export orders before-v2 ./exports/orders"))
    (elsewhere,) = [line for line in lines if "./elsewhere" in line]
    assert "of another log (" in ends_with(shop.run(elsewhere), 65).err
    shutil.rmtree(shop.home / "out")  # as a start would need it: its log is another one
    for line in lines:
        said = ends_with(shop.run(line), 2).out
        assert "Brought in" in said, line
        assert "checkpoint 1 of job 'orders'" in re.sub(r"\s+", " ", said), line


def test_names_are_given_shown_and_taken(shop: Shop) -> None:
    lines = part("names")
    drops = [line for line in lines if " drop " in line]
    shop.run(drops[0])
    said = {line: ends_with(shop.run(line)).out for line in [line for line in lines if line not in drops] + drops}
    assert said["penstock savepoint create orders before-v2"] == "2\n"
    assert said["penstock savepoint create orders good --at 1"] == "1\n"
    shown = sample("savepoints.md", "   name")
    shows(shown, re.sub(r"process \d+ on \S+", "process 4242 on web-1", said["penstock savepoint list orders"]))
    assert list(shop.job.read().pins) == ["good"]


def test_a_running_job_is_stopped(shop: Shop) -> None:
    run, *stops = sorted(part("stop"))
    assert len(stops) == 4
    for line in stops:
        shop.back("stopped")
        shop.run("penstock savepoint drop orders before-v2")
        if "--drain" not in line:
            shop.without_input(2)
        ran, stopped = shop.run_until(run, line, rows=len(THIRD) if "--drain" in line else 0)
        ends_with(ran)
        assert int(ends_with(stopped).out) == max(shop.job.read().restorable)
        assert "everything is published" in stopped.err
        name = re.search(r"--savepoint (\S+)", line)
        assert list(shop.job.read().pins) == ([name[1]] if name else [])
        open_windows = {row["user"] for row in published(shop.home / "out" / "totals") if ":04:" in row["window_start"]}
        assert open_windows == ({"u3"} if "--drain" in line else set())


def test_a_dead_job_is_settled(shop: Shop) -> None:
    shop.back("killed")
    (line,) = part("settle")
    assert "everything is published" in ends_with(shop.run(line)).err
    assert shop.job.read().open_committables == ()


def test_a_rewind_says_what_it_means_and_does_it(shop: Shop) -> None:
    for line in part("rewind"):
        shop.back("stopped")
        said = ends_with(shop.run(line))
        point = shop.job.read().restore_point
        expected = 2 if "--dry-run" in line else None if "--fresh" in line else 1
        assert (point.checkpoint if point else None) == expected, line
        if line == "penstock rewind orders before-v2":
            shows(sample("savepoints.md", "rewind from"), said.err.replace("[y/N] ", "[y/N] y\n"))
        if "--json" in line:
            assert json.loads(said.out)["to_checkpoint"] == 1


def test_a_start_begins_at_an_older_checkpoint_and_at_an_exported_one(shop: Shop) -> None:
    lines = part("begin")
    exports = [line for line in lines if " export " in line]
    copied = [line for line in lines if "./exports/orders" in line and line not in exports]
    assert (len(lines), len(exports), len(copied)) == (6, 2, 2)
    for export, begin in zip(exports, copied, strict=True):
        shop.back("stopped")
        ends_with(shop.run(export))
        shop.without_input(1)
        assert ", brought from " in ends_with(shop.run(begin)).err
        assert (shop.home / "exports" / "orders" / "claimed.json").exists() == ("--claim" in begin)
    for line in set(lines) - {*exports, *copied}:
        shop.back("stopped")
        if "--discard-unpublished" in line:
            shop.without_input(1)
        said = ends_with(shop.run(line)).err
        assert "orders: restoring from checkpoint 1 " in said
        assert f"{0 if '--discard-unpublished' in line else len(SECOND) + len(THIRD)} rows read" in said


def test_a_shadow_run_says_what_the_page_shows(shop: Shop) -> None:
    (line,) = part("shadow")
    said = ends_with(shop.run(line), 2)
    shows(sample("shadow.md", "orders: from checkpoint"), said.out, shop=shop.home)


def test_new_code_on_old_state_goes_as_the_readme_says(shop: Shop) -> None:
    assert sample("../README.md", "penstock run").strip() in part("stop"), "a running job is stopped: above"
    text = sample("../README.md", "penstock savepoint create")
    create, plan, shadow, rewind, query = [line.partition("#")[0].strip() for line in text.splitlines()]
    ends_with(shop.run("penstock savepoint drop orders before-v2"))
    held = ends_with(shop.run(query)).out
    assert ends_with(shop.run(create)).out == "2\n"
    assert {name: pin.checkpoint for name, pin in shop.job.read().pins.items()} == {"before-v2": 2}
    shop.deploy(SHOP_V2)
    assert "~ totals" in ends_with(shop.run(plan), 2).out
    tried = ends_with(shop.run(shadow)).out
    assert "from checkpoint 2 on" in tried
    assert "nothing to compare with" in tried
    ends_with(shop.run("penstock run shop:orders --state ./state"))
    assert shop.run(query).out != held
    ends_with(shop.run(rewind))
    point = shop.job.read().restore_point
    assert point is not None
    assert point.checkpoint == 2
    assert ends_with(shop.run(query)).out == held
    assert "u2" in held


def test_a_real_job_dies_at_a_crash_point_as_the_tutorial_says_and_goes_on(shop: Shop) -> None:
    killed, again = sample("crash-tutorial.md", "PENSTOCK_FAILPOINTS").splitlines()
    (code,) = [text for text in blocks("crash-tutorial.md", "python") if text.startswith("# alarms_mended.py")]
    shop.deploy(code, "alarms_mended")
    shop.without_input(0)
    drop(shop.home / "in", "a.json", [{"user": "ann", "amount": 2000.0}])
    armed, *words = shlex.split(killed)
    assert words[0] == "penstock"
    with (shop.home / "killed.err").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "--checkpoint-every", "200ms"],
            cwd=shop.home,
            env=surroundings(shop.home) | dict([armed.split("=", 1)]),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        mails = shop.home / "mails"
        assert holds_within(240, lambda: any(mails.glob("part-*")) or process.poll() is not None)
        drop(shop.home / "in", "b.json", [{"user": "bob", "amount": 3000.0}, {"user": "cas", "amount": 3.0}])
        assert process.wait(240) == -signal.SIGKILL, (shop.home / "killed.err").read_text()
    finally:
        process.kill()
        assert all_gone(shop.home) == 0
    ends_with(shop.run(again))
    assert sorted(row["to"] for row in published(shop.home / "mails")) == ["ann", "bob"]


def test_steps_go_on_under_other_names(shop: Shop) -> None:
    (line,) = part("rename")
    shop.deploy(RENAMED)
    ends_with(shop.run("penstock run shop:orders"), 65)
    ends_with(shop.run(line))
    rows = [(row["user"], row["amount"]) for row in published(shop.home / "out" / "totals")]
    assert sorted(rows) == [("u1", 2.0), ("u1", 3.0), ("u2", 1.0), ("u2", 2.5), ("u2", 4.0), ("u3", -5.0)], "none twice"


def test_what_there_is_is_looked_at_and_letters_are_replayed(shop: Shop) -> None:
    shop.without_input(2)
    for line in part("look"):
        given = line.replace("SELECT …", "SELECT user, amount FROM totals").replace("CHECKPOINT", "before-v2")
        ends_with(shop.run(given))
    assert "1 row of a replay yet to be in a checkpoint" in shop.run("penstock deadletter list orders").out


def test_a_project_is_made_and_its_tests_are_found(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    init, webhook, test = part("project")
    ends_with(shop.run(webhook))
    assert "ps.http.Source(" in (shop.home / "hook" / "orders.py").read_text()
    shutil.rmtree(Path(shop.home / "hook"))
    ends_with(shop.run(init))
    assert sorted(path.name for path in (shop.home / "shop").iterdir()) == [
        ".gitignore",
        "README.md",
        "sales.py",
        "sample.py",
        "test_sales.py",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop.home / "shop")
        ends_with(shop.run(test, "--collect-only", "-q"))
    assert "wherever_it_dies" in capfd.readouterr().out
    shutil.rmtree(Path(shop.home / "shop"))
