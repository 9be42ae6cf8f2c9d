"""The files of a windowed aggregate's state: which are taken, what they may be called, and who can read them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.spark.session import state_session
from window_harness import Rig

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("amount", pa.int64())])
PAGE = Path(__file__).parents[2] / "docs" / "state-on-disk.md"


def step(*aggregates) -> WindowAggregate:
    aggregates = aggregates or (agg.sum("amount").alias("amount"),)
    return WindowAggregate(keys=(("user", "user"),), time="at", window=tumbling("10 seconds"), aggregates=aggregates)


def rows(*seconds: int, user: str = "a") -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "amount": second} for second in seconds]


def rest_of(rig: Rig) -> list[tuple[object, ...]]:
    rig.advance(MAX_WATERMARK)
    found = [(row[0], row[3]) for row in rig.take()]
    rig.operator.close()
    return found


def test_a_file_that_a_killed_attempt_left_behind_is_not_part_of_the_layer(spark, tmp_path):
    """A speculative twin is killed after its file was closed and before anybody looks for the job's files."""

    def leave_twins(place: str) -> None:
        if place != "state.layer.written":
            return
        for file in list(tmp_path.rglob("*.parquet")):
            attempt = file.parent / "_temporary" / "0" / "_temporary" / "attempt_202401010000_0001_m_000000_1"
            attempt.mkdir(parents=True)
            shutil.copy(file, attempt / file.name)
            shutil.copy(file, file.parent / f"_{file.name}")

    rig = Rig(spark, step(), SCHEMA, tmp_path, failpoint=leave_twins)
    rig.process(rows(1, 2))
    handle = rig.checkpoint()
    (layer,) = handle.layers
    assert [len(file.path.split("/")) for file in layer.files] == [6] * len(layer.files)
    assert [file.path for file in layer.files] == list(rig.filesystem.list("state")), "the twins are gone"
    again = rig.again(handle)
    assert rest_of(again) == [("a", 3)]


@pytest.mark.usefixtures("eight_of_a_size")
@pytest.mark.parametrize("folder", ["{x,y} a[b]c what?*", "day=1 100%20 #1"])
def test_a_state_path_is_a_path_and_not_a_pattern(spark, tmp_path, folder):
    rig = Rig(spark, step(), SCHEMA, tmp_path / folder / "job")
    for second in range(8):
        rig.process(rows(second))
        rig.checkpoint()
    assert rig.maintain() >= 1  # durable layers are merged from their files
    handle = rig.checkpoint()
    assert [layer.level for layer in handle.layers] == [1]
    assert rest_of(rig.again(handle)) == [("a", 28)]


def test_the_page_about_files_has_a_query_that_duckdb_runs(spark, tmp_path, monkeypatch):
    (query,) = re.findall(r"```sql\n(.*?);?\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    rig = Rig(spark, step(), SCHEMA, tmp_path / "state" / "orders")
    rig.process([*rows(1, 2, 12), *rows(5, user="b")])
    rig.checkpoint()
    rig = rig.again(rig.checkpoint())  # of two generations
    rig.process(rows(3))
    rig.checkpoint()
    found = duckdb.sql(f'SELECT "user", epoch_us(window_start), amount FROM ({query})').fetchall()
    assert found == [("a", 0, 6), ("a", 10 * SECOND, 12), ("b", 0, 5)]
    rig.operator.close()


def test_the_page_about_files_names_the_columns_and_their_types(spark, tmp_path):
    aggregates = (agg.sum("amount").alias("s"), agg.count().alias("n"), agg.min("at"), agg.max("amount"))
    rig = Rig(spark, step(*aggregates, agg.avg("amount").alias("mean")), SCHEMA, tmp_path)
    rig.process(rows(1))
    files = [str(tmp_path / file.path) for file in rig.checkpoint().layers[0].files]
    described = duckdb.sql(f"DESCRIBE SELECT * FROM read_parquet({files})").fetchall()
    assert [(row[0], row[1]) for row in described] == [
        ("user", "VARCHAR"),
        ("window_start", "TIMESTAMP WITH TIME ZONE"),
        ("window_end", "TIMESTAMP WITH TIME ZONE"),
        ("s__sum", "BIGINT"),
        ("n__count", "BIGINT"),
        ("min_at__min", "TIMESTAMP WITH TIME ZONE"),
        ("max_amount__max", "BIGINT"),
        ("mean__sum", "DOUBLE"),
        ("mean__count", "BIGINT"),
    ]
    text = PAGE.read_text(encoding="utf-8")
    parts = {name.rpartition("__")[2] for name, *_ in described if "__" in name}
    assert all(f"`{part}`" in text for part in parts)
    rig.operator.close()


def test_layers_are_merged_under_the_settings_of_the_users_session(spark):
    users = spark.newSession()
    chosen = {"spark.sql.ansi.enabled": "false", "spark.sql.legacy.sizeOfNull": "false"}
    for name, value in (chosen | {"spark.sql.session.timeZone": "Asia/Tokyo"}).items():
        users.conf.set(name, value)
    child = state_session(users, tasks=3)
    assert {name: child.conf.get(name) for name in chosen} == chosen
    assert child.conf.get("spark.sql.session.timeZone") == "UTC", "files are read by others"
    assert child.conf.get("spark.sql.shuffle.partitions") == "3"
    assert users.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
