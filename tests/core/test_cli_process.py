"""The parent of ``penstock run`` with a child that only plays the job: signals, restarts, exit codes, deaths."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from crash.waiting import until
from penstock.cli.run import RunCommand
from penstock.job.start import StartOptions

PARENT = str(Path(__file__).with_name("cli_parent.py"))


class Run:
    """A parent, its child's record, and what the parent said."""

    def __init__(self, tmp_path, *script):
        self.record = tmp_path / "record"
        self.process = subprocess.Popen(
            [sys.executable, PARENT, str(self.record), *script],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def lines(self):
        return self.record.read_text().splitlines() if self.record.exists() else []

    @property
    def starts(self):
        return [line for line in self.lines if line.startswith("start")]

    @property
    def child(self):
        return int(self.starts[-1].split()[1])

    def waits_for(self, what):
        until(30, f"the child said {what!r}", lambda: any(what in line for line in self.lines), lambda: str(self.lines))

    def end(self):
        try:
            said, _ = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            raise
        return self.process.returncode, said


def _kill_child(pid):
    try:
        child = psutil.Process(pid)
        if any("cli_child" in word for word in child.cmdline()):
            child.kill()
    except psutil.Error:
        return


@pytest.fixture
def run(tmp_path):
    made = []

    def start(*script):
        made.append(Run(tmp_path, *script))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
        for line in each.starts:
            _kill_child(int(line.split()[1]))
        each.process.wait(10)
        each.process.stdout.close()


@pytest.mark.parametrize("code", [0, 1, 64, 65, 69, 70])
def test_a_child_that_ended_by_itself_is_not_started_again(run, code):
    made = run(str(code))

    assert made.end()[0] == code
    assert len(made.starts) == 1


@pytest.mark.parametrize(("death", "words"), [("75", "the engine died"), ("killed", "was killed by SIGKILL")])
def test_a_child_that_died_is_started_again_and_the_user_is_told(run, death, words):
    made = run(f"{death},{death},0")

    code, said = made.end()

    assert code == 0
    assert len(made.starts) == 3
    assert said.count(words) == 2
    assert "it starts again in 0.0 s, from the last complete checkpoint" in said


def test_a_later_start_knows_that_an_earlier_one_had_run(run):
    made = run("unborn,75,0")

    assert made.end()[0] == 0
    assert [line.endswith("again") for line in made.starts] == [False, False, True]


def test_a_child_that_never_gets_as_far_as_reading_is_given_up(run):
    made = run("unborn")

    code, said = made.end()

    assert code == 75
    assert len(made.starts) == 3
    assert "gives up" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_parent_alone_stops_the_child_in_order(run, number):
    made = run("wait")
    made.waits_for("start")

    made.process.send_signal(number)

    assert made.end()[0] == 0
    assert made.lines[-1] == "ended in order"


def test_a_signal_to_the_child_alone_stops_it_in_order(run):
    made = run("wait")
    made.waits_for("start")

    os.kill(made.child, signal.SIGTERM)

    assert made.end()[0] == 0
    assert len(made.starts) == 1


def test_a_signal_to_the_whole_group_counts_once(run):
    made = run("wait")
    made.waits_for("start")

    os.killpg(made.process.pid, signal.SIGINT)

    assert made.end()[0] == 0
    assert made.lines[-1] == "ended in order"


def test_a_signal_to_parent_and_child_counts_once(run):
    made = run("wait", "slow")
    made.waits_for("start")

    os.kill(made.child, signal.SIGTERM)
    made.process.send_signal(signal.SIGTERM)
    made.waits_for("asked")

    made.process.send_signal(signal.SIGTERM)
    assert made.end()[0] == 130
    assert sum("taking a last checkpoint" in line for line in made.lines) == 1


def test_a_second_signal_ends_at_once(run):
    made = run("wait", "slow")
    made.waits_for("start")
    made.process.send_signal(signal.SIGINT)
    made.waits_for("asked")

    made.process.send_signal(signal.SIGINT)

    assert made.end()[0] == 130
    assert made.lines[-1] != "ended in order"


def test_a_child_that_does_not_listen_is_killed_after_a_second_signal(run):
    made = run("deaf")
    made.waits_for("start")

    made.process.send_signal(signal.SIGINT)
    made.process.send_signal(signal.SIGTERM)

    assert made.end()[0] == 130


def test_a_child_whose_parent_was_killed_stops_in_order(run):
    made = run("wait")
    made.waits_for("start")

    made.process.kill()

    made.waits_for("ended in order")
    assert any("the parent process is gone" in line for line in made.lines)


def test_a_child_killed_after_a_stop_was_asked_for_is_not_started_again(run):
    made = run("wait", "slow")
    made.waits_for("start")
    made.process.send_signal(signal.SIGTERM)
    made.waits_for("asked")

    os.kill(made.child, signal.SIGKILL)

    code, said = made.end()
    assert code == 75
    assert len(made.starts) == 1
    assert "before its last checkpoint" in said


def test_where_a_job_begins_is_told_to_its_process_until_it_has_begun():
    start = StartOptions(folder="/copy", claim=True)
    options = RunCommand(pipeline="shop:orders", state="s", start=start, take_over=False)

    begins = options.child_command(begins=True, take_over=False, traceback=False)
    assert begins[begins.index("--from") + 1] == "/copy"
    assert "--claim" in begins
    goes_on = options.child_command(begins=False, take_over=False, traceback=False)
    assert not {"--from", "--claim", "--discard-unpublished"}.intersection(goes_on)
