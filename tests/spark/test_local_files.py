"""Modes of local files that Hadoop writes, without a process that sets each."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.local_files import set_modes_without_processes

pytestmark = pytest.mark.spark


@pytest.fixture
def hadoop(spark) -> Any:
    """The file system of local files that Hadoop keeps for all."""
    set_modes_without_processes(spark.sparkContext)
    jvm, inner = spark.sparkContext._jvm, spark.sparkContext._jsc
    get = getattr(jvm, "org.apache.hadoop.fs.FileSystem").get
    return get(jvm.java.net.URI.create("file:///"), inner.hadoopConfiguration()).getRawFileSystem()


@pytest.fixture
def plain(spark) -> Any:
    """Hadoop's own, which starts a process for each."""
    jvm = spark.sparkContext._jvm
    made = getattr(jvm, "org.apache.hadoop.fs.RawLocalFileSystem")()
    made.initialize(jvm.java.net.URI.create("file:///"), spark.sparkContext._jsc.hadoopConfiguration())
    return made


def set_mode(jvm: Any, file_system: Any, path: Path, mode: int) -> None:
    permission = getattr(jvm, "org.apache.hadoop.fs.permission.FsPermission")(f"{mode:04o}")
    file_system.setPermission(getattr(jvm, "org.apache.hadoop.fs.Path")(str(path)), permission)


@pytest.mark.parametrize("wanted", [0o600, 0o644, 0o755, 0o777, 0o1777, 0o000])
@pytest.mark.parametrize("before", [0o600, 0o755, 0o2755, 0o1777, 0o3770])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_whatever_the_mode_was_it_becomes_what_hadoops_own_way_makes_of_it(
    spark, hadoop, plain, tmp_path, kind, before, wanted
):
    modes = []
    for number, each in enumerate((hadoop, plain)):
        path = tmp_path / str(number)
        path.mkdir() if kind == "folder" else path.touch()
        os.chmod(path, before)
        set_mode(spark.sparkContext._jvm, each, path, wanted)
        modes.append(oct(stat.S_IMODE(path.stat().st_mode)))
        path.chmod(0o700)
    assert modes[0] == modes[1]


def test_a_link_is_followed_and_a_file_that_is_not_there_is_an_error_of_storage(spark, hadoop, tmp_path):
    jvm = spark.sparkContext._jvm
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    set_mode(jvm, hadoop, tmp_path / "link", 0o640)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    with pytest.raises(Exception, match="NoSuchFileException"):
        set_mode(jvm, hadoop, tmp_path / "gone", 0o640)


def test_jobs_write_through_it_and_a_second_call_replaces_nothing(spark, hadoop, tmp_path):
    assert hadoop.getClass().getName() == "PenstockLocalFiles"
    set_modes_without_processes(spark.sparkContext)
    jvm, inner = spark.sparkContext._jvm, spark.sparkContext._jsc
    again = getattr(jvm, "org.apache.hadoop.fs.FileSystem").get(
        jvm.java.net.URI.create("file:///"), inner.hadoopConfiguration()
    )
    assert again.getRawFileSystem().equals(hadoop)
    spark.range(10).selectExpr("id", "id % 2 AS half").write.partitionBy("half").parquet(str(tmp_path / "out"))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*")}
    assert modes == {0o644, 0o755}
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10


def test_a_spark_that_does_not_allow_it_goes_on_as_before_and_says_so(caplog):
    class Context:
        _jvm = _jsc = _gateway = None

    with caplog.at_level("INFO", logger="penstock"):
        set_modes_without_processes(Context())  # type: ignore[arg-type]
    assert "Hadoop starts a process for each local file" in caplog.text
