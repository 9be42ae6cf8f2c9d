"""The settings of a session that penstock makes, without a JVM; and the time zone that a start keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.plan_kit import at
from penstock.errors import SettingsError, StateIncompatible
from penstock.job.start import check_timezone
from penstock.spark.configuration import configured_timezone
from penstock.spark.session import make_session


@pytest.mark.parametrize("master", ["lokal[2]", "local[0]", "local[two]", "spark:7077", "nonsense"])
def test_a_master_that_spark_does_not_know_is_refused_by_its_name_before_java_is_looked_for(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/gone")
    with pytest.raises(SettingsError) as error:
        make_session("demo", master=master)
    assert str(error.value).startswith(f"Spark has no master {master!r}. Write ")


# ---------------------------------------------------------------------------------- the time zone of a session of ours


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_it_is_utc_and_not_the_machines_unless_spark_is_configured(configured: Path) -> None:
    assert configured_timezone() == "UTC"
    configured.write_text("spark.driver.memory 1g\n# spark.sql.session.timeZone Asia/Tokyo\n")
    assert configured_timezone() == "UTC"


@pytest.mark.parametrize("between", [" ", "\t", "=", " = ", ":"])
def test_it_is_that_of_sparks_defaults(configured: Path, between: str) -> None:
    configured.write_text(f"spark.driver.memory 1g\n\nspark.sql.session.timeZone{between}Europe/Berlin\n")
    assert configured_timezone() == "Europe/Berlin"


@pytest.mark.parametrize("option", ["--conf {}", "-c {}", "--conf={}", "--conf '{}'"])
def test_what_is_submitted_counts_more_than_the_defaults(
    configured: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    configured.write_text("spark.sql.session.timeZone Europe/Berlin\n")
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", f"{option.format('spark.sql.session.timeZone=Asia/Tokyo')} --conf a=b pyspark-shell"
    )
    assert configured_timezone() == "Asia/Tokyo"


# --------------------------------------------------------------------------------------- the zone of what is restored


def test_a_checkpoint_whose_zone_was_not_recorded_is_of_utc() -> None:
    restored = at(2)
    check_timezone(restored, "UTC")
    with pytest.raises(StateIncompatible, match=r"Checkpoint 2 was taken in .*'UTC', .* has 'Asia/Tokyo'"):
        check_timezone(restored, "Asia/Tokyo")


def test_a_zone_is_kept_unless_it_is_chosen_anew() -> None:
    restored = replace(at(2), settings={"timezone": "Asia/Tokyo"})
    check_timezone(restored, "Asia/Tokyo")
    check_timezone(restored, None)
    with pytest.raises(
        StateIncompatible, match=r"timezone='Asia/Tokyo' \(PENSTOCK_TIMEZONE=Asia/Tokyo\), or change it"
    ):
        check_timezone(restored, "UTC")


def test_an_empty_start_and_state_that_no_run_has_written_take_any_zone() -> None:
    check_timezone(None, "Asia/Tokyo")
    check_timezone(replace(at(2), settings={}), "Asia/Tokyo")
