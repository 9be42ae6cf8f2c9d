"""``penstock doctor`` from the command line: real probes, a Java that only says what it is, both outputs."""

import io
import json
import os
import socket
from pathlib import Path

import pytest

from core.cli_kit import say
from penstock.admin import doctor as admin_doctor
from penstock.admin import doctor_kafka
from penstock.admin.doctor_checks import fail, ok, warn
from penstock.cli.doctor import SCHEMA, document, summary, text_of
from penstock.cli.output import Output

GOLDEN = Path(__file__).parent / "cli_golden"
SOME = [
    ok("python", "3.12.1 (/venv/bin/python)"),
    warn("cores", "1 core", "give it two or more"),
    fail("java", "11 (/jdk, found by PATH)", "install Java 17 or newer"),
]


@pytest.fixture
def java(tmp_path, monkeypatch):
    """JAVA_HOME with a program that says that it is Java of a version."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    for name in [name for name in os.environ if name.startswith(("PENSTOCK_", "SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)

    def make(version):
        program = home / "bin" / "java"
        told = [f"java.home = {home}", f"java.specification.version = {version}"]
        program.write_text("#!/bin/sh\n" + "".join(f"echo '    {line}' >&2\n" for line in told))
        program.chmod(0o755)

    make(21)
    return make


def doctor(tmp_path, *arguments):
    return say("doctor", *arguments, "--no-spark", "--state", str(tmp_path / "state"))


def findings(said):
    told = json.loads(said.out)
    assert told["schema"] == "penstock.doctor/1"
    return told, {line["name"]: line for line in told["findings"]}


def test_a_machine_that_has_everything_ends_with_0_and_keeps_nothing_of_it(tmp_path, java):
    said = doctor(tmp_path)

    assert said.code == 0, said.out
    assert "FAIL " not in said.out
    for line in ("python: 3.", "packages: cyclopts ", "java: 21 (", "durable writes: create, link"):
        assert f"ok    {line}" in said.out
    assert {path.name for path in tmp_path.iterdir()} == {"jdk"}


def test_the_document_for_scripts_says_the_same(tmp_path, java):
    told, lines = findings(doctor(tmp_path, "--json"))

    assert told["verdict"] in {"ok", "warn"}
    found = f"21 ({tmp_path}/jdk, found by JAVA_HOME)"
    assert lines["java"] == {"name": "java", "verdict": "ok", "message": found, "remedy": None}
    assert {"python", "packages", "extras", "cores", "memory", "environment"} <= lines.keys()
    assert {"state folder", "durable writes", "space", "clocks"} <= lines.keys()


def test_an_old_java_fails_the_whole_with_1(tmp_path, java):
    java(11)

    said = doctor(tmp_path)

    assert said.code == 1
    assert "FAIL  java: 11 (" in said.out
    assert "→ install Java 17 or newer" in said.out
    assert "a job will not run here" in said.out


def test_no_java_at_all_is_told_with_where_it_was_looked_for(tmp_path, java, monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))

    _, lines = findings(doctor(tmp_path, "--json"))

    assert lines["java"]["message"] == "there is none: JAVA_HOME is not set, and no java is on PATH"


def test_a_java_home_without_java_is_told(tmp_path, java, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    _, lines = findings(doctor(tmp_path, "--json"))

    assert lines["java"]["verdict"] == "fail"
    assert lines["java"]["message"] == f"JAVA_HOME is {tmp_path}/gone"


def test_a_state_folder_that_is_a_file_fails(tmp_path, java):
    (tmp_path / "state").write_text("")

    _, lines = findings(doctor(tmp_path, "--json"))

    assert lines["state folder"]["verdict"] == "fail"
    assert "is a file" in lines["state folder"]["message"]


def test_an_address_that_no_file_system_knows_fails(tmp_path, java):
    said = say("doctor", "--no-spark", "--json", "--state", "s3://bucket/state")

    assert said.code == 1
    assert findings(said)[1]["state folder"]["message"] == "s3://bucket/state"


def test_the_pipeline_is_built_and_its_steps_are_named(tmp_path, java, monkeypatch):
    (tmp_path / "doctored_shop.py").write_text(
        "import penstock as ps\n\n\n@ps.pipeline('orders')\ndef orders(p):\n"
        "    p.read('in', ps.rate.Source(rows_per_second=1)).write('out', ps.console.Sink())\n"
    )
    monkeypatch.chdir(tmp_path)

    assert findings(doctor(tmp_path, "doctored_shop:orders", "--json"))[1]["pipeline"]["message"] == (
        "orders reads in and writes out"
    )
    said = doctor(tmp_path, "doctored_shop:order", "--json")
    assert said.code == 1
    assert "Did you mean 'orders'?" in findings(said)[1]["pipeline"]["message"]


FOLDERS = """\
import penstock as ps


@ps.pipeline("orders")
def orders(p):
    lines = p.read("in", ps.files.Source("in", format="text", pattern="*.txt"))
    lines.write("out", ps.files.Sink("out/lines", format="text"))
    p.read("ticks", ps.rate.Source(1)).write("shown", ps.console.Sink())
"""


@pytest.fixture
def folders(tmp_path, java, monkeypatch):
    """A pipeline of folders, and what doctor finds of its sources and sinks, by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    name = f"folders_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FOLDERS)
    (tmp_path / "in").mkdir()

    def look():
        said = doctor(tmp_path, f"{name}:orders", "--json")
        return said.code, {line: found for line, found in findings(said)[1].items() if line.startswith(("so", "si"))}

    return look


def test_each_source_and_sink_of_a_pipeline_has_a_line(tmp_path, folders):
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / "in" / name).write_text("x\n")

    code, found = folders()

    assert code == 0
    assert {name: line["message"] for name, line in found.items()} == {
        "source in": f"files {tmp_path}/in/*.txt (text): 2 files",
        "sink out": f"files {tmp_path}/out/lines (text): can be written, will be made",
        "source ticks": "rate 1 rows/s",
        "sink shown": "console (20 rows a batch)",
    }
    assert not (tmp_path / "out").exists()
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"a.txt", "b.txt", "c.csv"}


def test_an_input_folder_that_is_not_there_fails_with_its_remedy(tmp_path, folders):
    (tmp_path / "in").rmdir()

    code, found = folders()

    assert code == 1
    assert found["source in"]["message"].endswith(f"{tmp_path}/in is not there")
    assert found["source in"]["remedy"] == "make the folder, mount it, or correct the path"


def test_an_input_folder_in_which_nothing_matches_is_a_warning(tmp_path, folders):
    (tmp_path / "in" / "a.csv").write_text("x\n")

    code, found = folders()

    assert (code, found["source in"]["verdict"]) == (0, "warn")
    assert "no file matches, and the folder is not empty" in found["source in"]["message"]


def test_input_that_this_user_may_not_read_fails_and_names_a_file(tmp_path, folders, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in" / name).write_text("x\n")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.txt") and real(path, mode))

    code, found = folders()

    assert code == 1
    assert "1 of 2 files cannot be read, such as b.txt" in found["source in"]["message"]


@pytest.mark.parametrize("taken", ["out", "out/lines"])
def test_an_output_folder_in_whose_place_a_file_is_fails(tmp_path, folders, taken):
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("a file")

    code, found = folders()

    assert code == 1
    assert "Not a directory" in found["sink out"]["message"]
    assert "move the file away that is in its place" in found["sink out"]["remedy"]


def test_an_output_folder_that_takes_no_file_fails(tmp_path, folders, monkeypatch):
    def refuse(**_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(admin_doctor.tempfile, "NamedTemporaryFile", refuse)

    code, found = folders()

    assert code == 1
    assert found["sink out"]["message"].endswith(f"cannot write in {tmp_path}: Permission denied")
    assert "give this user the right to write there" in found["sink out"]["remedy"]


def test_a_broker_that_does_not_answer_fails_within_its_time(tmp_path, java, monkeypatch):
    monkeypatch.setattr(doctor_kafka, "BROKER_TIMEOUT", 0.3)
    with socket.socket() as nobody:  # bound, and does not listen
        nobody.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"

        said = doctor(tmp_path, "--servers", servers)

    assert said.code == 1
    assert f"FAIL  kafka {servers}: no answer within 0.3 s" in said.out
    assert f"asking {servers} …" in said.err
    assert "advertised.listeners" in said.out


def test_a_client_that_is_not_installed_is_told_with_its_extra(tmp_path, java, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)

    said = doctor(tmp_path, "--servers", "localhost:9092")

    assert said.code == 1
    assert "pip install 'penstock[kafka]'" in said.out


@pytest.mark.parametrize("suffix", ["text.txt", "json"])
def test_what_is_printed_of_some_findings(suffix):
    if suffix == "json":
        stream = io.StringIO()
        Output(out=stream).document(SCHEMA, **document(SOME))
        found = stream.getvalue()
    else:
        found = "\n".join([*(text_of(finding).plain for finding in SOME), summary(SOME)]) + "\n"
    golden = GOLDEN / f"doctor.{suffix}"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(found)

    assert found == golden.read_text()
