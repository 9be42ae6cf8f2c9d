"""The archive of Spark's classes: which one fits, what of it is believed, and two processes that make it at once."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway

from penstock.admin import warming
from penstock.admin.doctor_checks import Status
from penstock.clock import SystemClock
from penstock.errors import SettingsError
from penstock.spark import jvm
from penstock.spark.class_archive import (
    MAX_ARCHIVES,
    RETRY_SECONDS,
    VARIABLE,
    ClassArchive,
    archive_options,
    archive_use,
    class_archive,
)

WHOLE = 0xF00BABA8.to_bytes(4, "little") + b"classes" * 1000


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with a Java that archives, a Spark of two jars, and a cache folder that is not there."""
    java, spark = tmp_path / "jdk", tmp_path / "spark"
    for folder in (java / "bin", java / "lib" / "server", spark / "jars"):
        folder.mkdir(parents=True)
    for file in ("bin/java", "lib/server/libjvm.so", "lib/server/classes.jsa"):
        (java / file).write_text(file)
    (java / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n')
    for name in ("a.jar", "b.jar"):
        (spark / "jars" / name).write_text(name)
    return {"JAVA_HOME": str(java), "SPARK_HOME": str(spark), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def place(machine: dict[str, str], **settings: str) -> ClassArchive:
    found = class_archive(machine, settings)
    assert isinstance(found, ClassArchive), found
    return found


def made(archive: ClassArchive, content: bytes = WHOLE) -> Path:
    with archive.making() as unfinished:
        assert unfinished is not None
        unfinished.write_bytes(content)
        path = archive.publish(unfinished)
    assert path is not None
    return path


# ------------------------------------------------------------------------------------------------------- which one fits


def test_an_archive_is_found_again_in_a_folder_of_this_user_alone(machine: dict[str, str]) -> None:
    archive = place(machine)
    assert archive.find() is None
    assert not Path(machine["XDG_CACHE_HOME"]).exists()
    path = made(archive)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert place(machine).find() == path
    assert archive_options(machine, {}) == f"-Xlog:cds*=off -Xshare:auto -XX:SharedArchiveFile={path}"
    assert archive_options(machine | {VARIABLE: "use"}, {}) == archive_options(machine, {})
    assert archive_options(machine | {VARIABLE: "off"}, {}) == ""


@pytest.mark.parametrize("changed", ["jdk/release", "jdk/lib/server/libjvm.so", "spark/jars/b.jar", "spark/jars/c.jar"])
def test_another_java_or_another_jar_has_another_archive(machine: dict[str, str], changed: str, tmp_path: Path) -> None:
    made(place(machine))
    with (tmp_path / changed).open("a") as file:
        file.write("another\n")
    assert place(machine).find() is None


def test_one_that_changes_in_its_time_alone_does_too_since_java_compares_it(machine: dict[str, str]) -> None:
    before = place(machine).key
    os.utime(Path(machine["SPARK_HOME"], "jars", "a.jar"), (1, 1))
    assert place(machine).key != before


def test_the_order_in_which_the_jars_are_listed_counts_since_it_is_that_of_the_class_path(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's class path ends with ``jars/*``; another file system lists the same folder in another order."""
    before, listed = place(machine).key, os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed(path)[::-1])
    assert place(machine).key != before


@pytest.mark.parametrize(
    ("variables", "settings", "why"),
    [
        ({"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/x.jsa"}, {}, "SPARK_SUBMIT_OPTS chooses an archive"),
        ({"JAVA_TOOL_OPTIONS": "-Xshare:off"}, {}, "JAVA_TOOL_OPTIONS chooses an archive"),
        ({}, {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, "changes how Java lays out objects"),
        ({}, {"spark.driver.extraClassPath": "/x"}, "extraClassPath is set"),
        ({"HADOOP_CONF_DIR": "/etc/hadoop"}, {}, "HADOOP_CONF_DIR is set"),
        ({"JAVA_HOME": "/gone"}, {}, "JAVA_HOME is '/gone'"),
        ({"SPARK_HOME": "/gone"}, {}, "SPARK_HOME is '/gone'"),
        ({"HOME": "", "XDG_CACHE_HOME": ""}, {}, "no home folder"),
        ({"XDG_CACHE_HOME": "relative"}, {}, "no home folder"),
    ],
)
def test_where_none_can_be_used_it_is_said_why(
    machine: dict[str, str], variables: dict[str, str], settings: dict[str, str], why: str
) -> None:
    made(place(machine))
    found = class_archive(machine | variables, settings)
    assert isinstance(found, str)
    assert any(each in found for each in why.split("|"))
    assert archive_options(machine | variables, settings) == ""


def test_a_folder_of_configuration_with_files_is_on_the_class_path_and_java_archives_none(
    machine: dict[str, str],
) -> None:
    conf = Path(machine["SPARK_HOME"], "conf")
    conf.mkdir()
    assert isinstance(class_archive(machine, {}), ClassArchive)
    (conf / "spark-env.sh").write_text("")
    assert "Java archives jars alone" in str(class_archive(machine, {}))


def test_java_25_is_kept_quiet_by_another_tag_too_which_17_would_not_start_with(machine: dict[str, str]) -> None:
    Path(machine["JAVA_HOME"], "release").write_text('JAVA_VERSION="25.0.3"\n')
    made(place(machine))
    assert archive_options(machine, {}).startswith("-Xlog:cds*=off -Xlog:aot*=off ")


def test_another_value_of_the_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="PENSTOCK_CLASS_ARCHIVE is 'yes', but must be one of make, use, off"):
        archive_use({VARIABLE: "yes"})


# ----------------------------------------------------------------------------------------------- what of it is believed


@pytest.mark.parametrize("damage", ["cut", "one byte", "no magic", "empty"])
def test_a_damaged_archive_is_not_used_but_deleted(machine: dict[str, str], damage: str) -> None:
    """Java 17 ends with SIGABRT if it is given half an archive."""
    path = made(place(machine))
    content = {
        "cut": WHOLE[: len(WHOLE) // 2],
        "one byte": WHOLE[:99] + b"!" + WHOLE[100:],
        "no magic": b"\0\0\0\0" + WHOLE[4:],
        "empty": b"",
    }[damage]
    path.write_bytes(content)
    assert archive_options(machine, {}) == ""
    assert not path.exists()
    assert made(place(machine)).exists()


def test_what_others_may_write_is_not_believed(machine: dict[str, str]) -> None:
    path = made(place(machine))
    path.chmod(0o666)
    assert place(machine).find() is None
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert place(machine).find() is None
    with pytest.raises(PermissionError), place(machine).making():
        pass
    path.parent.chmod(0o700)
    assert place(machine).find() == path


def test_what_a_killed_jvm_has_left_is_never_published(machine: dict[str, str]) -> None:
    archive = place(machine)
    with archive.making() as unfinished:
        assert unfinished is not None
        assert archive.publish(unfinished) is None  # it wrote nothing
        unfinished.write_bytes(b"\0\0\0\0" + WHOLE[4:])  # the magic number comes last
        assert archive.publish(unfinished) is None
    assert archive.find() is None
    assert not list(archive.folder.glob("*.unfinished"))


# ------------------------------------------------------------------------------------------------------------ making it


def test_of_two_that_make_it_at_once_one_does(machine: dict[str, str]) -> None:
    archive = place(machine)
    with archive.making() as first:
        assert first is not None
        with place(machine).making() as second:
            assert second is None
        first.write_bytes(WHOLE)
        assert archive.publish(first) is not None
    with archive.making() as later:
        assert later is not None


def test_archives_that_were_used_last_are_kept(machine: dict[str, str]) -> None:
    paths = []
    for number in range(MAX_ARCHIVES + 2):
        Path(machine["SPARK_HOME"], "jars", "b.jar").write_text("b" * (number + 1))
        paths.append(made(place(machine)))
        os.utime(paths[-1], (1_000 + number, 1_000 + number))
    assert [path for path in paths if path.exists()] == paths[-MAX_ARCHIVES:]


def test_an_attempt_that_failed_is_not_repeated_by_each_run(machine: dict[str, str]) -> None:
    archive = place(machine)
    assert archive.is_due(now=0.0)
    with archive.making():
        pass
    lock = next(archive.folder.glob(".*.lock"))
    os.utime(lock, (1_000, 1_000))
    assert not archive.is_due(now=1_000 + RETRY_SECONDS - 1)
    assert archive.is_due(now=1_000 + RETRY_SECONDS)
    with archive.making():
        pass
    assert not archive.is_due(now=1_000 + RETRY_SECONDS), "it was tried again just now"


# ------------------------------------------------------------------------------------------------------- starts of JVMs


@pytest.fixture
def here(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The machine is this one."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PENSTOCK_MASTER", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    return machine


class Launches:
    """Stands in for PySpark's ``launch_gateway``: remembers the options of each JVM; those with an archive may fail."""

    def __init__(self, *, fails: bool) -> None:
        self.options: list[str | None] = []
        self.fails = fails

    def __call__(self, conf: Any, popen_kwargs: Any) -> str:
        options = os.environ.get("SPARK_SUBMIT_OPTS")
        self.options.append(options)
        if self.fails and "SharedArchiveFile" in (options or ""):
            raise RuntimeError
        return "gateway"


@pytest.mark.parametrize("before", [None, "-Da=b"])
def test_a_jvm_gets_the_archive_and_what_it_starts_itself_does_not(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    launch = Launches(fails=False)
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    if before is not None:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", before)
    path = made(place(here))
    assert jvm.start_jvm(Any) == "gateway"
    (options,) = launch.options
    assert options is not None
    assert options.endswith(" ".join(filter(None, (f"-XX:SharedArchiveFile={path}", before)))), "the user's come last"
    assert "-XX:G1MaxNewSizePercent=" in options
    assert os.environ.get("SPARK_SUBMIT_OPTS") == before


def test_a_jvm_that_does_not_start_with_its_archive_starts_without(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launches(fails=True)
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    made(place(here))
    assert jvm.start_jvm(Any) == "gateway"
    assert ["SharedArchiveFile" in (options or "") for options in launch.options] == [True, False]
    assert not launch.options[1], "nor with other options of ours, which might be the reason"


def test_after_a_run_a_process_makes_the_archive_once_and_only_where_it_is_of_use(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: begun.append(command))
    clock = SystemClock()
    for variable, value in ((VARIABLE, "off"), (VARIABLE, "use"), ("PENSTOCK_MASTER", "spark://host:7077")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert not warming.make_in_background(clock)
    assert warming.make_in_background(clock)
    assert [command[1:] for command in begun] == [["-m", warming.MODULE]]
    with place(here).making():  # the process tries
        pass
    assert not warming.make_in_background(clock)
    made(place(here))
    assert not warming.make_in_background(clock)


def test_doctor_says_where_the_archive_is_and_makes_it_if_asked(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*, warm: bool = False) -> tuple[Status, str]:
        finding = warming.class_archive_of({}, make=warm, announce=lambda _: None)
        return finding.status, finding.found

    assert look() == (
        Status.OK,
        "none yet: penstock run makes one after its first orderly end, or penstock doctor --warm makes it now",
    )
    monkeypatch.setattr(warming, "_run_job", lambda archive, unfinished: "Error: it could not")
    status, found = look(warm=True)
    assert status is Status.WARN
    assert "Java wrote no archive of Spark's classes: Error: it could not." in found

    def run(archive: ClassArchive, unfinished: Path) -> str:
        unfinished.write_bytes(WHOLE)
        return ""

    monkeypatch.setattr(warming, "_run_job", run)
    with place(here).making():
        assert look(warm=True) == (Status.OK, "another process is writing it")
    made_now = look(warm=True)
    assert made_now == look()
    assert made_now[1].startswith(here["XDG_CACHE_HOME"])
    monkeypatch.setenv(VARIABLE, "off")
    assert look() == (Status.OK, "switched off by PENSTOCK_CLASS_ARCHIVE")
    monkeypatch.setenv(VARIABLE, "never")
    assert look()[0] is Status.FAIL
