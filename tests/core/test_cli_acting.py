"""What the commands that name, stop, publish, go back, copy and delete say: golden text and documents, on real logs."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.checkpoint_values import condemn, pin
from core.cli_kit import Terminal, say
from core.control_kit import Driver
from core.log_kit import staged
from core.looking_kit import NOON, WEB, Noon, layer_in, put, taken, write_log
from penstock.checkpoint.entries import Stopped
from penstock.control import client as directories
from penstock.control.client import mark_released
from penstock.filesystem.local import LocalFileSystem

GOLDEN = Path(__file__).parent / "cli_golden"
NOBODYS = "state/totals/0/nobody/part-0.parquet"

COMMANDS = {
    "checkpoints": ("checkpoints", "orders"),
    "savepoint-create": ("savepoint", "create", "orders", "before-v3"),
    "savepoint-list": ("savepoint", "list", "orders"),
    "savepoint-show": ("savepoint", "show", "orders", "before-v2"),
    "savepoint-drop": ("savepoint", "drop", "orders", "before-v2", "--yes"),
    "savepoint-export": ("savepoint", "export", "orders", "2", "exported"),
    "stop": ("stop", "orders", "--savepoint", "end"),
    "settle": ("settle", "orders"),
    "rewind": ("rewind", "orders", "before-v2", "--yes"),
    "rewind-dry": ("rewind", "orders", "before-v2", "--dry-run"),
    "rewind-discard": ("rewind", "orders", "before-v2", "--discard-unpublished", "--yes"),
    "rewind-fresh": ("rewind", "orders", "--fresh", "--yes"),
    "gc": ("gc", "orders", "--yes"),
}
"""What is compared, and how it is asked for; a stop that leaves output unpublished ends with 1."""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A job that died: checkpoint 0 is condemned, 1 a savepoint, the output of 1 and 2 open, a file nobody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directories, "SystemClock", Noon)
    state = tmp_path / "state"
    job = state / "orders"
    old, one, two = layer_in(job, "a", b"old"), layer_in(job, "b", b"rows of 1"), layer_in(job, "c", b"rows of two")
    first, second = staged(tmp_path, 1), staged(tmp_path, 2)
    write_log(
        state,
        WEB,
        taken(0, None, old),
        taken(1, 0, one, open=(first,)),
        pin("before-v2", 1, owner="alice"),
        taken(2, 1, one, two, open=(first, second)),
        condemn(0, files=[old.files[0].path]),
    )
    put(job, NOBODYS, b"left behind")
    mark_released("log-1", 0)  # nobody is asked
    aged(tmp_path)
    return tmp_path


def aged(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(NOON * 1_000, NOON * 1_000))


def of(*arguments):
    return say(*arguments, "--state", "state")


def steady(text, folder):
    """The text without what differs from machine to machine, or with each release."""
    text = text.replace(str(folder), "/shop")
    text = re.sub(r"process \d+ on [\w.-]+", "process N on HOST", text)
    text = re.sub(r'("sha256": ")[0-9a-f]{64}', r"\1…", text)
    sizes = r'("owner": "log",\s+"file_count": \d+,\s+"bytes": |"path": "log/[^"]+",\s+"bytes": )\d+'
    text = re.sub(sizes, r"\g<1>1000", text)  # the log holds paths
    text = re.sub(r"(sha256 )[0-9a-f]{12}", r"\1…", text)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def compare(name, text):
    golden = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_people_read_on_both_streams_is_golden(shop, command):
    said = of(*COMMANDS[command])

    assert said.code == (1 if command == "stop" else 0), said.err
    compare(f"{command}-said.txt", steady(f"{said.out}--- stderr\n{said.err}", shop))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_document_is_golden_and_the_exit_code_is_that_of_the_text(shop, command):
    said = of(*COMMANDS[command], "--json")

    assert said.code == (1 if command == "stop" else 0), said.err
    compare(f"{command}-said.json", steady(said.out, shop))


@contextmanager
def running(job: Path) -> Iterator[Driver]:
    """A driver has the job: its one task acknowledges at once, and whoever asks is answered."""
    driver, is_over = Driver(LocalFileSystem(job)).claim().begin(), threading.Event()

    def decide() -> None:
        while not is_over.wait(0.002):
            driver.turn()

    deciding = threading.Thread(target=decide, name="decides")
    deciding.start()
    driver.watch.start()
    try:
        yield driver
    finally:
        is_over.set()
        deciding.join()
        driver.watch.close()


@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("savepoint-create-running", ("savepoint", "create", "orders", "before-v3")),
        ("savepoint-create-at-running", ("savepoint", "create", "orders", "before-v3", "--at", "2")),
        ("savepoint-drop-running", ("savepoint", "drop", "orders", "before-v2", "--yes")),
        ("stop-running", ("stop", "orders")),
        ("stop-savepoint-running", ("stop", "orders", "--savepoint", "end")),
        ("stop-drain-running", ("stop", "orders", "--drain")),
        ("stop-drain-savepoint-running", ("stop", "orders", "--drain", "--savepoint", "end")),
    ],
)
def test_a_running_job_does_it_and_that_is_golden(shop, command, line, name, options):
    with running(shop / "state" / "orders") as driver:
        said = of(*line, *options)

    assert said.code == 0, said.err
    assert driver.drains == ("--drain" in line)
    compare(f"{command}.{name}", steady(said.out if options else f"{said.out}--- stderr\n{said.err}", shop))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("savepoint-create-taken", ("savepoint", "create", "orders", "before-v2")),
        ("stop-savepoint-taken", ("stop", "orders", "--savepoint", "before-v2", "--json")),
    ],
)
def test_a_running_job_refuses_a_name_that_is_taken_and_goes_on(shop, command, line):
    with running(shop / "state" / "orders"):
        said = of(*line)
        after = of("savepoint", "create", "orders", "before-v3")

    assert (said.code, said.out) == (1, "")
    assert (after.code, after.out) == (0, "3\n"), "it goes on"
    compare(f"{command}-running.txt", steady(f"--- stderr\n{said.err}", shop))


@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
@pytest.mark.parametrize("command", ["rewind", "savepoint-drop", "gc"])
def test_who_says_no_has_changed_nothing_and_gets_a_document_that_says_so(shop, monkeypatch, command, name, options):
    before = {path: path.read_bytes() for path in shop.rglob("*") if path.is_file()}
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))

    said = of(*[word for word in COMMANDS[command] if word != "--yes"], *options)

    assert said.code == 1
    assert {path: path.read_bytes() for path in shop.rglob("*") if path.is_file()} == before
    compare(f"{command}-no.{name}", steady(said.out if options else f"{said.out}--- stderr\n{said.err}", shop))


@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
def test_a_job_at_rest_stops_again_with_everything_published(tmp_path, monkeypatch, name, options):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "state", WEB, taken(0, None), Stopped(checkpoint=0, at=NOON))

    said = of("stop", "orders", *options)

    assert said.code == 0
    compare(f"stop-said-rest.{name}", said.out if options else f"{said.out}--- stderr\n{said.err}")


@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
def test_nothing_to_delete_is_said_and_has_a_document(tmp_path, monkeypatch, name, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directories, "SystemClock", Noon)
    write_log(tmp_path / "state", WEB, taken(0, None), Stopped(checkpoint=0, at=NOON))
    aged(tmp_path)

    said = of("gc", "orders", "--yes", *options)

    assert said.code == 0
    compare(f"gc-said-nothing.{name}", said.out)


@pytest.mark.parametrize("damage", ["sound", "broken"])
@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
def test_a_folder_that_was_exported_is_verified(shop, damage, name, options):
    assert of("savepoint", "export", "orders", "before-v2", "exported").code == 0
    if damage == "broken":
        (shop / "exported" / "state/totals/0/b/part-0.parquet").write_bytes(b"rows of !")
        put(shop / "exported", "notes.txt", b"of a person")

    said = say("verify", "./exported", *options)

    assert said.code == (1 if damage == "broken" else 0)
    compare(f"verify-export-{damage}.{name}", steady(said.out, shop))


@pytest.mark.parametrize(("name", "options"), [("txt", []), ("json", ["--json"])])
def test_a_job_that_is_broken_is_told_with_what_needs_the_file(shop, name, options):
    (shop / "state/orders/state/totals/0/b/part-0.parquet").write_bytes(b"rows of !")
    (shop / "out/.penstock/log-1/out/0/2/part.json").write_bytes(b"row !")

    said = of("verify", "orders", *options)

    assert said.code == 1
    compare(f"verify-broken.{name}", steady(said.out, shop))
