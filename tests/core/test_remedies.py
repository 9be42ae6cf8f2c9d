"""Errors that a person meets in a terminal say what is meant, which value is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

import penstock as ps
from core.cli_kit import say
from core.graphs import NoSpec
from core.plan_kit import SHOP, module
from penstock.admin.state_read import frames_of
from penstock.errors import StateDirectoryRefused, StateIncompatible, StorageFailed
from penstock.graph.nodes import Graph, Keyed
from penstock.spark import jvm
from penstock.spark.jvm import log_jvm_to_file


@dataclass(frozen=True)
class Given:
    """A pipeline that is already a graph."""

    made: Graph

    def graph(self) -> Graph:
        return self.made


def test_a_step_whose_state_is_no_table_is_answered_with_those_that_are() -> None:
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        numbers = p.read("in", ps.rate.Source(10)).with_watermark("at", delay="1 second")
        for uid in ("totals", "seen"):
            counts = numbers.group_by("value", ps.tumbling("1 minute")).agg(uid, ps.agg.count().alias("n"))
            counts.write(f"{uid}-out", ps.console.Sink())

    graph = orders.graph()
    nodes = [replace(n, spec=NoSpec()) if isinstance(n, Keyed) and n.uid == "seen" else n for n in graph.nodes]
    given = cast("Any", Given(replace(graph, nodes=tuple(nodes))))

    with pytest.raises(StateIncompatible) as told:
        frames_of(given, "seen", cast("Any", None))

    assert str(told.value) == (
        "step 'seen': Its state is of kind 'none/1', which is not a table. Tables of pipeline 'orders': totals. Read "
        "one of these, or the files that penstock state show orders --json names."
    )


def test_a_state_folder_that_cannot_be_made_is_refused_with_65_by_parent_and_child(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    command = ["run", f"{module(tmp_path, SHOP)}:orders", "--no-parent", "--state"]

    for state, why in (("taken", "File exists"), ("taken/below", "Not a directory")):
        said = say(*command, state)

        assert said.code == 65
        assert (
            f"Folder {state} of --state cannot be written in: {why}. Make it a writable folder, or give --state another"
            in said.err
        )
        assert "bug of penstock" not in said.err


def test_a_folder_for_a_shadow_run_is_told_by_its_own_option(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")

    said = say("shadow", f"{module(tmp_path, SHOP)}:orders", "--from", "x", "--out", "taken/tried")

    assert said.code == 65
    assert (
        "Folder taken of --out cannot be written in: File exists. Make it a writable folder, or give --out another"
        in said.err
    )


def test_a_folder_that_only_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm.os, "access", lambda path, mode: False)  # who runs this may be allowed everything

    with pytest.raises(StateDirectoryRefused, match=r"Permission denied. Make it a writable folder"):
        log_jvm_to_file("orders", str(tmp_path))


def test_a_folder_that_this_user_may_not_look_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))  # as until Python 3.13

    monkeypatch.setattr(Path, "exists", closed)

    with pytest.raises(StateDirectoryRefused) as told:
        log_jvm_to_file("orders", "/root/state")

    assert str(told.value).startswith("Folder /root/state of --state cannot be written in: Permission denied. Make it")


def test_a_log_file_that_only_others_may_write_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders.engine.log").write_text("")
    monkeypatch.setattr(jvm.os, "access", lambda path, mode: Path(path) == tmp_path)

    with pytest.raises(StateDirectoryRefused) as told:
        log_jvm_to_file("orders", str(tmp_path))

    assert str(told.value) == (
        f"File {tmp_path}/orders.engine.log cannot be written: Permission denied. Delete it, make it writable for this "
        "user, or give --state another folder."
    )


def test_a_full_disk_is_not_the_fault_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)

    with pytest.raises(StorageFailed, match=r"of --state cannot be made: No space left on device. Free some space"):
        log_jvm_to_file("orders", str(tmp_path / "state"))
