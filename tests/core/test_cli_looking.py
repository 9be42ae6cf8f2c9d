"""What the commands that look say of a job that died, of one that stopped and of one that runs: text and JSON."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from core.cli_kit import say
from core.control_kit import Driver
from core.looking_kit import GONE, LAG, NOON, REPORT, SECOND, WEB, Noon, a_job, leave_numbers, taken, write_log
from penstock.admin.status import OwnerState, exceeded, job_status, parse_lag_limit
from penstock.checkpoint.entries import Stopped
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.control import client as directories
from penstock.control.client import JobDirectory, mark_released
from penstock.facts import SourceLag
from penstock.filesystem.local import LocalFileSystem
from penstock.observability.report import ReportCollector
from penstock.observability.status_file import HEARTBEAT_INTERVAL, StatusFileWriter, decode

GOLDEN = Path(__file__).parent / "cli_golden"
OPERATING = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
COMMANDS = {
    "list": ("list",),
    "status": ("status", "orders"),
    "checkpoint": ("checkpoint", "orders", "2"),
    "lag": ("lag", "orders"),
    "late": ("late", "orders"),
    "verify": ("verify", "orders"),
    "gc": ("gc", "orders", "--dry-run"),
}


@pytest.fixture
def at_noon(monkeypatch):
    """Commands look at their directories a quarter past twelve."""
    monkeypatch.setattr(directories, "SystemClock", Noon)


@pytest.fixture
def state(tmp_path, at_noon):
    job = a_job(tmp_path, claim=WEB)
    mark_released("log-1", 0)  # nobody is asked
    leave_numbers(job)
    for path in job.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(NOON * 1_000, NOON * 1_000))
    return tmp_path


def compare(name, said):
    golden = GOLDEN / name
    text = "".join(line.rstrip() + "\n" for line in said.splitlines())
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def of(state, *arguments):
    return say(*arguments, "--state", str(state))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dead_job_is_told_from_its_directory_alone(state, command):
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}

    said = of(state, *COMMANDS[command])

    assert (said.code, said.err) == (0, "")
    compare(f"{command}-dead.txt", said.out)
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


@pytest.mark.parametrize("command", COMMANDS)
def test_the_document_of_each_command_has_a_versioned_schema(state, command):
    said = of(state, *COMMANDS[command], "--json")

    assert said.code == 0
    assert json.loads(said.out)["schema"] == f"penstock.{command}/1"
    compare(f"{command}-dead.json", said.out.replace(str(state), "state"))


def test_all_commands_tell_the_numbers_of_the_report(state):
    documents = {name: json.loads(of(state, *words, "--json").out) for name, words in COMMANDS.items()}

    run = documents["status"]["run"]
    assert {each["uid"]: each["rows_read"] for each in run["sources"]} == dict(REPORT.rows_read)
    assert {each["uid"]: each["rows_written"] for each in run["sinks"]} == dict(REPORT.rows_written)
    assert {each["uid"]: each["batch_count"] for each in run["sources"]} == dict(REPORT.batches)
    assert (run["checkpoint_count"], run["failed_checkpoint_count"], run["restart_count"]) == (2, 1, 1)
    counters = {each["uid"]: {own["name"]: own["amount"] for own in each["counters"]} for each in run["steps"]}
    assert counters == {"out": {}, "totals": {"late": 7, "missing_time": 3, "fired": 9}}
    assert run["sources"][0]["behind_rows"] == LAG.rows == documents["lag"]["sources"][0]["behind_rows"]
    assert documents["list"]["jobs"][0]["behind_rows"] == LAG.rows
    assert run["put_aside"] == documents["late"]["put_aside"]
    assert {each["step"]: each["rows"] for each in run["put_aside"]} == {"totals": 7, "parse_json value": 2}
    bytes = documents["list"]["jobs"][0]["state_bytes"]
    checkpoints = json.loads(of(state, "checkpoints", "orders", "--json").out)["checkpoints"]
    assert [each["state_bytes"] for each in checkpoints if each["is_restore_point"]] == [bytes]
    assert bytes == documents["status"]["state_bytes"] == documents["checkpoint"]["state_bytes"]
    assert bytes == sum(each["bytes"] for each in documents["status"]["steps"])
    owned = {each["owner"]: each for each in documents["gc"]["sums"]}
    assert owned["checkpoint"]["bytes"] == bytes, "checkpoint 1 has a part of what 2 has"


def test_a_job_that_stopped_says_so_and_one_without_numbers_says_that(tmp_path, at_noon):
    write_log(tmp_path, GONE, taken(0, None), Stopped(checkpoint=0, at=NOON))

    listed, said = of(tmp_path, "list"), of(tmp_path, "status", "orders")

    assert "orders  stopped" in listed.out
    assert "stopped in order" in said.out
    assert "no run has written its numbers" in said.out
    assert "everything is published" in said.out
    assert of(tmp_path, "late", "orders").out == "orders: stopped · no run has written its numbers\n"


def test_numbers_of_an_earlier_run_are_marked_and_those_of_another_log_are_nobodys(tmp_path, at_noon):
    job = a_job(tmp_path, GONE)
    leave_numbers(job, generation=0)

    assert "as of 14 min 50 s ago, written by generation 0" in of(tmp_path, "status", "orders").out
    leave_numbers(job, log_id="another")
    assert "no run has written its numbers" in of(tmp_path, "status", "orders").out


def test_a_running_job_is_asked_and_says_what_it_is_doing(tmp_path, at_noon):
    job = a_job(tmp_path)
    driver = Driver(LocalFileSystem(job)).claim()
    leave_numbers(job, generation=driver.generation, seconds=899, log_id=driver.owned.log_id)
    driver.watch.start()
    try:
        now = job_status(JobDirectory(tmp_path, "orders"))
        said, listed = of(tmp_path, "status", "orders"), of(tmp_path, "list")
        documents = {name: of(tmp_path, *COMMANDS[name], "--json").out for name in ("status", "list")}
        swept = of(tmp_path, "gc", "orders", "--yes")
    finally:
        driver.watch.close()

    assert now.owner_state is OwnerState.RUNNING
    assert f"orders: running · process {os.getpid()} on " in said.out
    compare("status-running.txt", re.sub(r"process \d+ on [\w.-]+", "process N on HOST", said.out))
    for name, told in documents.items():
        compare(f"{name}-running.json", told.replace(str(tmp_path), "state").replace(driver.owned.log_id, "log-1"))
    assert "as of 1.0 s ago" in said.out
    assert "orders  running" in listed.out
    assert "1,204 rows" in listed.out
    assert swept.code == 69
    assert "cleans up by itself" in swept.err


def test_a_folder_without_jobs_says_so(tmp_path):
    said = of(tmp_path / "nowhere", "list")

    assert (said.code, said.out) == (0, "")
    assert "no job has any state in" in said.err


@pytest.mark.usefixtures("nobody_answers")
def test_a_job_that_cannot_be_read_hides_no_other(state):
    other = state / "broken" / "log"
    other.mkdir(parents=True)
    (other / f"{0:020d}.json").write_bytes(b"{}")

    said = of(state, "list")
    listed = json.loads(of(state, "list", "--json").out)["jobs"]

    compare("list-unreadable.txt", said.out.replace(str(state), "state"))
    compare("list-unreadable.json", of(state, "list", "--json").out.replace(str(state), "state"))
    assert "broken  unreadable: " in said.out
    assert "orders  dead" in said.out
    assert [each["is"] for each in listed] == ["unreadable", "dead"]
    assert listed[0].keys() == listed[1].keys()
    assert [each["message"] is None for each in listed] == [False, True]


@pytest.mark.parametrize(
    ("which", "expected"), [("before-v2", "checkpoint 1"), ("1", "checkpoint 1"), ("0", "condemned")]
)
def test_a_checkpoint_is_found_by_name_and_number_also_a_condemned_one(state, which, expected):
    said = of(state, "checkpoint", "orders", which)

    assert said.code == 0
    assert expected in said.out


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("befor-v2", "Did you mean 'before-v2'?"),
        ("7", "Checkpoint 7 is not in the log of job 'orders'. Checkpoints: 0, 1, 2."),
    ],
)
def test_an_unknown_checkpoint_is_answered_with_what_there_is(state, which, expected):
    said = of(state, "checkpoint", "orders", which)

    assert said.code == 64
    assert expected in said.err


def test_every_command_answers_an_unknown_job_with_the_nearest_one(state):
    for name, (command, *rest) in COMMANDS.items():
        if name != "list":
            said = of(state, command, "ordrs", *rest[1:])
            assert said.code == 64
            assert "Did you mean 'orders'?" in said.err


def test_looking_loads_no_spark(tmp_path):
    leave_numbers(a_job(tmp_path))
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"for words in {[[*words] for words in COMMANDS.values()]!r}:\n"
        f"    code = dispatch([*words, '--state', {str(tmp_path)!r}], Output())\n"
        "    if code or 'pyspark' in sys.modules or 'pandas' in sys.modules:\n"
        "        sys.exit(f'{words}: {code}')\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_source_of_files_tells_how_many_files_and_bytes_wait(state):
    lag = replace(LAG, rows=None, partitions={}, files=3, bytes=1_200)
    leave_numbers(state / "orders", report=replace(REPORT, lag={"in": lag}))

    compare("lag-files.json", of(state, "lag", "orders", "--json").out)
    compare("lag-files.txt", of(state, "lag", "orders").out)


def test_the_hint_file_is_what_the_documents_are_made_of(state):
    data = (state / "orders" / "control" / "report.json").read_bytes()
    hint = decode(data)

    assert hint is not None
    assert hint.report == REPORT
    compare("report-file.json", json.dumps(json.loads(data), indent=2))


# ---------------------------------------------------------------------------------------------------------- in the docs


def test_every_command_in_the_docs_works_as_it_stands_there(tmp_path, at_noon, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leave_numbers(a_job(tmp_path / ".penstock"))
    commands = re.findall(r"^penstock (.+?)(?:  +#.*)?$", OPERATING, flags=re.MULTILINE)
    assert len(commands) >= 10

    for command in commands:
        assert (command, say(*command.split()).code) == (command, 0)


@pytest.mark.parametrize("name", ["status-dead.txt", "lag-dead.txt"])
def test_what_the_docs_show_is_what_is_said(name):
    shown = re.findall(r"^```\n(.*?)^```$", OPERATING, flags=re.MULTILINE | re.DOTALL)
    said = (GOLDEN / name).read_text()

    assert any(said.startswith(block) for block in shown)


# ------------------------------------------------------------------------------------------------------------------ lag


def limit(state, text):
    said = of(state, "lag", "orders", "--max-lag", text)
    return said.code, said.out.splitlines()[-1]


def test_lag_of_a_job_that_does_not_run_is_over_any_limit(state):
    code, said = limit(state, "1000000")

    assert code == 4
    for name, text in (("rows", "1000"), ("seconds", "30s")):
        told = of(state, "lag", "orders", "--max-lag", text, "--json")
        assert told.code == 4
        compare(f"lag-over-{name}.json", told.out)
    assert said == "job 'orders' does not run (dead): how far it is behind now is not known"


def test_lag_of_a_running_job_is_held_against_rows_or_time(tmp_path, at_noon):
    job = a_job(tmp_path)
    driver = Driver(LocalFileSystem(job)).claim()
    driver.watch.start()
    try:
        assert limit(tmp_path, "5")[0] == 4, "it has told nothing yet"
        leave_numbers(job, generation=driver.generation, seconds=890, log_id=driver.owned.log_id)
        found = [limit(tmp_path, text) for text in ("1204", "1_203", "13s", "12s")]
        leave_numbers(job, generation=driver.generation, seconds=100, log_id=driver.owned.log_id)
        stale = limit(tmp_path, "1204")
        quiet = replace(REPORT, lag={"lines": replace(LAG, task="lines", rows=0)})
        leave_numbers(job, generation=driver.generation, seconds=890, log_id=driver.owned.log_id, report=quiet)
        beside = limit(tmp_path, "0")
        untold = replace(REPORT, lag={})
        leave_numbers(job, generation=driver.generation, seconds=890, log_id=driver.owned.log_id, report=untold)
        nobody = limit(tmp_path, "0")
    finally:
        driver.watch.close()

    assert [code for code, _ in found] == [0, 4, 0, 4]
    assert found[1][1] == "in: 1,204 rows behind, more than 1,203 rows"
    assert found[3][1] == "in: 12.5 s behind, more than 12 seconds"
    assert beside[0] == 0, "the other source never tells"
    assert nobody == (4, "no source of job 'orders' has reported how far it is behind")
    assert stale == (4, "job 'orders' has not reported how far it is behind for more than 60 s")


def test_a_lag_of_long_ago_in_a_fresh_file_is_unknown_unless_the_source_rests_as_planned(tmp_path, at_noon):
    job = a_job(tmp_path)
    driver = Driver(LocalFileSystem(job)).claim()
    driver.watch.start()
    driver.clock.at = Noon().wall() - 3_600 * SECOND
    tally = ReportCollector(sources=frozenset({"in"}), sinks=frozenset(), clock=driver.clock)
    hint = StatusFileWriter(
        driver.filesystem, job="orders", report=tally.report, owned=lambda: driver.owned, clock=driver.clock
    )
    tally(SourceLag(task="in", rows=0, seconds=0.0, eta_seconds=None, partitions={}))
    try:
        for _ in range(360):
            driver.clock.at += HEARTBEAT_INTERVAL
            hint.write_if_due()
        status = job_status(JobDirectory(tmp_path, "orders"))
        shown = [of(tmp_path, command, "orders").out for command in ("lag", "status")]
    finally:
        driver.watch.close()

    def passed(**resting):
        report = replace(status.hint.report, resting=resting)
        found = replace(status, hint=replace(status.hint, report=report))
        return [text for text in ("0", "30s", "59min", "61min") if not exceeded(found, parse_lag_limit(text))]

    assert status.hint_age == 0
    assert exceeded(status, parse_lag_limit("30s")) == ["in: has not reported how far it is behind for 3,600 s"]
    assert passed() == ["61min"], "no row has waited for longer"
    assert passed(**{"in": NOON - 100 * SECOND}) == ["61min"], "its poll is overdue"
    assert passed(**{"in": NOON + 890 * SECOND}) == ["0", "30s", "59min", "61min"], "its tick was just now"
    assert passed(**{"in": None}) == ["0", "30s", "59min", "61min"], "it has ended, or waits for a slower source"
    assert "in measured its lag 1 h ago" in shown[0]
    assert "in 0 rows, 0.0 s, measured 1 h ago" in shown[1]


def test_a_limit_that_is_none_is_refused(state):
    said = of(state, "lag", "orders", "--max-lag", "far")

    assert said.code == 64
    assert "Give rows, as in 10000, or a length of time, as in 30s." in said.err


def test_output_goes_where_it_belongs(state, capsys):
    assert dispatch(["status", "orders", "--state", str(state)], Output()) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_status_of_a_throttled_source_says_how_often_and_how_long(tmp_path, at_noon):
    job = a_job(tmp_path, claim=WEB)
    mark_released("log-1", 0)
    leave_numbers(job, report=replace(REPORT, counters={("in", "throttled"): 12, ("in", "throttled_ms"): 3_000}))
    said = of(tmp_path, "status", "orders")
    assert re.search(r"throttled +in 12 times, waited 3.0 s", said.out), said.out
    [source] = [
        each
        for each in json.loads(of(tmp_path, "status", "orders", "--json").out)["run"]["steps"]
        if each["uid"] == "in"
    ]
    assert source["counters"] == [{"name": "throttled", "amount": 12}, {"name": "throttled_ms", "amount": 3_000}]
