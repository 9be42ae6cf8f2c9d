"""What penstock doctor judges, apart from what it looks at: each verdict with its remedy."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import penstock as ps
from penstock.admin.doctor import (
    DEGRADES,
    MIB,
    Written,
    input_folder,
    kind_finding,
    look_at_storage,
    missing_settings,
    output_folder,
    skew_of,
    space_of,
    try_spark,
    try_writing,
    written_of,
)
from penstock.admin.doctor_checks import (
    GIB,
    JavaInstall,
    Status,
    cores_of,
    extras_of,
    fail,
    granted_cores,
    granted_memory,
    is_within,
    java_of,
    known_variables,
    memory_of,
    ok,
    ours_of,
    packages_of,
    parse_java_version,
    python_of,
    requirements,
    spark_variables_of,
    warn,
    worst,
)
from penstock.clock import SystemClock
from penstock.filesystem.local import LocalFileSystem
from penstock.spark.session import CONTEXT_SETTINGS

ASKED = requirements(["pyspark<5,>=4.1", "rich>=13.7", "confluent-kafka<3,>=2.12; extra == 'kafka'"])


def test_the_worst_finding_is_the_verdict():
    assert worst([]) is Status.OK
    assert worst([ok("a", ""), warn("b", "", "c")]) is Status.WARN
    assert worst([fail("a", "", "c"), ok("b", "")]) is Status.FAIL


# ------------------------------------------------------------------------------------------------- Python and packages


@pytest.mark.parametrize(
    ("version", "versions", "fits"),
    [
        ("4.3.0", "<5,>=4.1", True),
        ("4.1", ">=4.1.0", True),
        ("5.0.0", "<5,>=4.1", False),
        ("3.5.1", "<5,>=4.1", False),
        ("13.10.1", ">=13.7", True),
        ("2.3.3", "==2.3.3", True),
        ("2.3.3", "!=2.3.3", False),
        ("2.3.3.dev1", "<=2.3.3,>2", True),
        ("1.0", "", True),
    ],
)
def test_a_version_is_compared_by_its_numbers(version, versions, fits):
    assert is_within(version, versions) is fits


def test_a_python_that_is_not_tested_is_a_warning():
    assert python_of((3, 12), "3.12.1", "/bin/python", ["3.10", "3.9", "3.13"]).status is Status.OK
    newer = python_of((3, 14), "3.14.0", "/bin/python", ["3.9", "3.10", "3.13"])
    assert newer.status is Status.WARN
    assert "tested with Python 3.9 to 3.13" in str(newer.fix)


def test_what_is_asked_for_on_some_systems_only_is_left_out():
    lines = ["a>=1", "b[c]>2 ; python_version < '3.11'", "d>=3 ; extra == 'e'", "f; extra == 'e' and os_name == 'nt'"]
    assert [(each.name, each.versions, each.extra) for each in requirements(lines)] == [
        ("a", ">=1", None),
        ("d", ">=3", "e"),
    ]


def test_a_package_out_of_range_or_missing_fails_with_the_pip_command():
    versions = {"pyspark": "3.5.1"}
    found = packages_of(ASKED, versions.get)
    assert (found.status, found.found) == (Status.FAIL, "pyspark 3.5.1, rich is missing")
    assert found.fix == "pip install 'pyspark<5,>=4.1' 'rich>=13.7'"
    versions = {"pyspark": "4.3.0", "rich": "15.0.0"}
    assert packages_of(ASKED, versions.get).status is Status.OK
    connect = packages_of(ASKED, {**versions, "pyspark-client": "4.3.0"}.get)
    assert connect.status is Status.WARN
    assert "Spark Connect" in str(connect.fix)


def test_extras_are_listed_and_none_is_needed():
    assert extras_of(ASKED, {}.get).found == "not installed: penstock[kafka]"
    assert extras_of(ASKED, {}.get).status is Status.OK
    assert extras_of(ASKED, {"confluent-kafka": "2.16.1"}.get).found == "kafka (confluent-kafka 2.16.1)"
    assert extras_of(ASKED, {"confluent-kafka": "1.9"}.get).fix == "pip install 'confluent-kafka<3,>=2.12'"


# --------------------------------------------------------------------------------------------------------------- Java


@pytest.mark.parametrize(
    ("java", "status", "says"),
    [
        (JavaInstall(by="PATH", path="/usr/bin/java", home="/jdk", version=17), Status.OK, "17 (/jdk, found by PATH)"),
        (
            JavaInstall(by="JAVA_HOME", path="/j/bin/java", home="/j", version=11),
            Status.FAIL,
            "11 (/j, found by JAVA_HOME)",
        ),
        (JavaInstall(by="PATH", path=None), Status.FAIL, "no java is on PATH"),
        (JavaInstall(by="JAVA_HOME", path=None, home="/gone"), Status.FAIL, "JAVA_HOME is /gone"),
        (
            JavaInstall(by="PATH", path="/bin/java", output="no runtime"),
            Status.FAIL,
            "does not say its version: no runtime",
        ),
    ],
)
def test_java_is_17_or_newer_and_where_spark_looks(java, status, says):
    found = java_of(java)
    assert found.status is status
    assert says in found.found
    assert (found.fix is None) == (status is Status.OK)


def test_what_an_old_java_says_is_understood_too():
    assert parse_java_version("PATH", "/j", "    java.home = /j\n    java.specification.version = 1.8\n").version == 8
    assert parse_java_version("PATH", "/j", "    java.specification.version = 21").version == 21
    assert parse_java_version("PATH", "/j", "Error: no runtime\nmore").output == "Error: no runtime"


# ----------------------------------------------------------------------------------------------------- the machine


@pytest.mark.parametrize(
    ("there", "granted", "status", "found"),
    [
        (8, None, Status.OK, "8 cores"),
        (8, 8.0, Status.OK, "8 cores"),
        (1, None, Status.WARN, "1 core"),
        (64, 1.5, Status.WARN, "64 cores, of which this container may use 1.5"),
    ],
)
def test_one_core_is_a_warning_in_a_container_too(there, granted, status, found):
    finding = cores_of(there, granted)
    assert (finding.status, finding.found) == (status, found)


def test_little_memory_is_a_warning_in_a_container_too():
    assert memory_of(8 * GIB, None).status is Status.OK
    assert memory_of(64 * GIB, GIB).status is Status.WARN
    assert memory_of(GIB, 1 << 62).found == "1.0 GiB"
    assert memory_of(None, None).status is Status.OK


def test_the_limits_of_a_container_are_read_from_its_control_group(tmp_path):
    assert granted_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert granted_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert granted_memory(tmp_path) == GIB
    assert granted_cores(tmp_path) == 0.5


# ------------------------------------------------------------------------------------------------- the environment


def test_a_variable_that_nothing_reads_is_answered_with_the_nearest():
    found = ours_of({"PENSTOCK_RETAIND": "5", "HOME": "/root"})
    assert (found.status, found.found) == (Status.WARN, "PENSTOCK_RETAIND"), "a value that we do not know stays unsaid"
    assert found.fix == "PENSTOCK_RETAIND is not read. Did you mean 'PENSTOCK_RETAINED'?"


def test_an_impossible_setting_fails_and_an_armed_failpoint_warns():
    assert ours_of({}).status is Status.OK
    assert ours_of({"PENSTOCK_RETAINED": "5", "PENSTOCK_MASTER": "local[2]"}).status is Status.OK
    impossible = ours_of({"PENSTOCK_CHECKPOINT_EVERY": "fast"})
    assert impossible.status is Status.FAIL
    assert "checkpoint_every 'fast' is not" in str(impossible.fix)
    armed = ours_of({"PENSTOCK_FAILPOINTS": "sink.published=kill"})
    assert armed.status is Status.WARN
    assert "crash on purpose" in str(armed.fix)


def test_every_setting_has_its_variable():
    assert {"PENSTOCK_CHECKPOINT_EVERY", "PENSTOCK_STOP_TIMEOUT", "PENSTOCK_MASTER"} <= known_variables()


def test_what_leads_spark_astray_is_told():
    told = {
        finding.found.partition("=")[0]: finding.status
        for finding in spark_variables_of(
            {"SPARK_REMOTE": "sc://there", "SPARK_HOME": "/opt/spark", "PYSPARK_PYTHON": "python3.9"}, "/bin/python"
        )
    }
    assert told == {"SPARK_REMOTE": Status.FAIL, "SPARK_HOME": Status.WARN, "PYSPARK_PYTHON": Status.WARN}
    assert list(spark_variables_of({"PYSPARK_PYTHON": "/bin/python"}, "/bin/python")) == []


# ------------------------------------------------------------------------------------------------------------ storage


@pytest.mark.parametrize(
    ("kind", "status", "says"),
    [
        ("ext4", Status.OK, "/s on ext4, will be made"),
        ("unknown", Status.OK, "on unknown"),
        ("overlay", Status.WARN, "gone with the container"),
        ("tmpfs", Status.WARN, "gone when the machine restarts"),
        ("nfs4", Status.FAIL, "on nfs4"),
    ],
)
def test_each_kind_of_file_system_is_told_what_it_means(kind, status, says):
    found = kind_finding("/s", kind, is_new=True)
    assert found.status is status
    assert says in found.found


def test_slow_writes_little_room_and_skewed_clocks_are_told():
    assert written_of(Written(milliseconds=2.0, skew_seconds=0)).status is Status.OK
    assert written_of(Written(milliseconds=200.0, skew_seconds=0)).status is Status.WARN
    assert [space_of(size).status.value for size in (10 * MIB, 500 * MIB, 5_000 * MIB)] == ["FAIL", "warn", "ok"]
    assert skew_of(-1.5).status is Status.OK
    assert "9.0 s behind" in skew_of(-9).found
    assert "9.0 s ahead of" in skew_of(9).found


def test_a_folder_that_this_user_may_not_look_into_is_no_crash(tmp_path, monkeypatch):
    real = os.stat

    def stat(path, **options):
        if str(path).startswith(f"{tmp_path}/locked/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    def refuse(**options):
        raise PermissionError(13, "Permission denied", options["dir"])

    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(LocalFileSystem, "probe", lambda filesystem: refuse(dir=str(filesystem)))
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    closed = str(tmp_path / "locked" / "folder")

    *_, state = look_at_storage(closed, SystemClock())
    output = output_folder("sink out", ps.files.Sink(closed, format="text"))
    source = input_folder("source in", ps.files.Source(closed, format="text"))

    assert [(finding.name, finding.status.value) for finding in (state, output, source)] == [
        ("durable writes", "FAIL"),
        ("sink out", "FAIL"),
        ("source in", "FAIL"),
    ]
    assert output.found.endswith(f"cannot write in {tmp_path}/locked: Permission denied")


def test_two_that_try_one_folder_at_once_do_not_disturb_each_other(tmp_path):
    """As in two containers, where both may be process 1."""

    class Tries(SystemClock):
        tries = 0

        def now(self):
            self.tries += 1
            if self.tries == 4:
                try_writing(tmp_path, SystemClock())
            return super().now()

    try_writing(tmp_path, Tries())

    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------------- Spark


def test_a_session_with_all_that_ours_have_is_fine():
    (found,) = missing_settings(CONTEXT_SETTINGS)
    assert found.status is Status.OK


def test_each_setting_that_costs_something_is_one_of_those_that_a_session_of_ours_has():
    assert DEGRADES.keys() <= CONTEXT_SETTINGS.keys()
    assert [finding.status for finding in missing_settings({})] == [Status.WARN] * len(DEGRADES)


@pytest.mark.parametrize(
    ("name", "value", "is_enough"),
    [
        ("spark.sql.codegen.cache.maxEntries", "5000", True),
        ("spark.sql.codegen.cache.maxEntries", "100", False),
        ("spark.locality.wait", "0s", True),
        ("spark.locality.wait", "3s", False),
        ("spark.ui.enabled", "FALSE", True),
        ("spark.scheduler.mode", "FIFO", False),
    ],
)
def test_a_setting_that_is_as_good_as_ours_is_no_warning(name, value, is_enough):
    found = [
        finding for finding in missing_settings({**CONTEXT_SETTINGS, name: value}) if finding.status is Status.WARN
    ]
    assert (found == []) is is_enough
    for finding in found:
        assert f"{name} is {value}" in finding.found
        assert f'.config("{name}", "{CONTEXT_SETTINGS[name]}")' in str(finding.fix)


def test_a_trial_of_spark_ends_in_one_line_however_it_ends():
    told = json.dumps({"version": "4.3.0", "cores": 2, "rows": 1000, "seconds": 6.04})
    fine = try_spark(lambda: (0, f"WARNING: Using incubator modules\n{told}\n", "noise"))
    assert fine.status is Status.OK
    assert fine.found == "Spark 4.3.0: a classic session and a job with Python workers in 6.0 s, on 2 cores"

    lacking = try_spark(lambda: (0, json.dumps(json.loads(told) | {"missing_class": "org.apache.spark.X"}), ""))
    assert lacking.status is Status.WARN
    assert "no class org.apache.spark.X" in lacking.found

    logged = try_spark(lambda: (0, f'{told}\n{{"level": "INFO", "version": 3}}\n{{not JSON\n["a", 1]\n', "noise"))
    assert logged == fine

    mismatch = "Traceback\n  File\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 and 3.11"
    failed = try_spark(lambda: (1, "", mismatch))
    assert failed.status is Status.FAIL
    assert "PYTHON_VERSION_MISMATCH" in failed.found
    assert "PYSPARK_PYTHON" in str(failed.fix)

    died = 'Exception in thread "main" org.apache.spark.SparkException: no such master\n  at x\nSomeError: JVM gone'
    assert try_spark(lambda: (1, "", died)).found == "no session: org.apache.spark.SparkException: no such master"

    other = try_spark(lambda: (0, '{"level": "INFO"}\n', ""))
    assert (other.status, other.found) == (Status.FAIL, "no session: its process ended with 0")

    silent = try_spark(lambda: (-9, "", ""))
    assert silent.found == "no session: its process ended with -9"

    def hangs():
        raise subprocess.TimeoutExpired(cmd="python", timeout=120)

    assert "no session within 120 s" in try_spark(hangs).found


def test_what_the_jvm_writes_need_not_be_utf_8(tmp_path, monkeypatch):
    (tmp_path / "noisy.py").write_text(
        "import os\nos.write(1, b'caf\\xe9\\n')\nos.write(2, b'SomeError: caf\\xe9\\n')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("penstock.admin.doctor.TRIAL", "noisy")

    assert try_spark().found == "no session: SomeError: caf\ufffd"
