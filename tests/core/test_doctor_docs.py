"""The page about doctor: its command lines are run, and what it shows is held against what a real process says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from core.cli_kit import say
from core.plan_kit import SHOP, module
from page_kit import command_lines, sample
from penstock.admin import doctor_kafka
from penstock.admin.doctor import MIB, kind_finding, space_of, try_spark
from penstock.admin.doctor_checks import GIB, Finding, Status, cores_of, memory_of
from penstock.cli.doctor import summary, text_of

SHOWN = sample("doctor.md", "$ penstock doctor\n")
OF_THIS_MACHINE = {"extras", "cores", "memory", "state folder", "class archive"}
"""Lines that say something else, or that something is lacking, from machine to machine."""


def findings(text: str) -> dict[str, Finding]:
    found = re.findall(r"^(ok|warn|FAIL) +([a-z ]+): (.*)(?:\n +→ (.*))?$", text, re.MULTILINE)
    return {
        name: Finding(name=name, status=Status(status), found=said, fix=fix or None)
        for status, name, said, fix in found
    }


def plain(text: str) -> str:
    """Without numbers, places, and where Java was found."""
    text = re.sub(r"/[^\s,)]+", "PATH", text)
    return re.sub(r"\d+(\.\d+)*|found by \w+", "N", text)


def clean(name: str) -> bool:
    return not name.startswith(("PENSTOCK_", "SPARK_", "PYSPARK_"))


def test_a_machine_is_told_of_as_the_page_shows(tmp_path: Path) -> None:
    shown = findings(SHOWN)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--no-spark"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if clean(name)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    said = findings(done.stdout)
    assert [*said, "spark"] == list(shown)
    for name in said.keys() - OF_THIS_MACHINE:
        assert plain(said[name].found) == plain(shown[name].found)
    assert list(tmp_path.iterdir()) == []


def test_what_the_page_shows_of_another_machine_is_what_is_said_there() -> None:
    shown = findings(SHOWN)
    there = kind_finding("/home/you/.penstock", "overlay", is_new=True)
    assert shown["state folder"] == there
    assert (shown["cores"], shown["memory"]) == (cores_of(8, None), memory_of(int(31.2 * GIB) + 1, None))
    trial = json.dumps({"version": "4.3.0", "seconds": 6.1, "cores": 8})
    assert shown["spark"] == try_spark(lambda: (0, trial, ""))
    assert shown["space"] == space_of(int(210.4 * 1024 * MIB) + MIB)
    printed = [text_of(each).plain for each in shown.values()]
    assert SHOWN.splitlines()[1:] == "\n".join([*printed, summary(shown.values())]).splitlines()


def test_the_other_lines_of_the_page_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a session, which test_doctor_spark makes; brokers of these names are nowhere, nor are credentials."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(doctor_kafka, "BROKER_TIMEOUT", 0.3)
    for name in filter(lambda name: not clean(name), list(os.environ)):
        monkeypatch.delenv(name)
    ours = module(tmp_path, SHOP)
    lines = command_lines("doctor.md")
    assert len(lines) == 8
    for line in lines:
        if "--warm" in line:
            continue  # half a minute: test_class_archive in tests/spark
        words = shlex.split(line.replace("shop:", f"{ours}:").replace("/data", str(tmp_path / "data")))[1:]
        said = say(*words, *([] if "--no-spark" in words else ["--no-spark"]))
        assert said.code == (1 if {"--servers", "--lease-table"} & {*words} else 0), (line, said.out)
        if "--json" in words:
            assert json.loads(said.out)["schema"] == "penstock.doctor/1"
        assert {path.name for path in tmp_path.iterdir()} <= {f"{ours}.py", "__pycache__"}
