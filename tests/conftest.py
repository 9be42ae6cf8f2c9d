"""What every test run shares: one local Spark session, and a header that lets a run be repeated."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import tiers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


# What a test starts looks for nothing in the user's cache folder, and makes nothing there.
os.environ.setdefault("PENSTOCK_CLASS_ARCHIVE", "off")

for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    # Shells and nohup have what runs in the background ignore these, and what a test starts would inherit that.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


# How long an example takes says nothing of what it shows.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of outer tiers, and put long tests first: else one worker ends with minutes that the other lacks."""
    table = tiers.read_table()
    for item in items:
        tier = tiers.tier_of(item.nodeid.removeprefix("tests/"), table)
        if tier is not None:
            item.add_marker(tier)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    marked = [item.get_closest_marker(marker) is not None for marker in ("crash", "integration", "slow", "spark")]
    return [*marked, True].index(True)


def pytest_report_header() -> str:
    return f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"


def remember_classes() -> None:
    """Let py4j keep the classes that it has found."""
    # It asks for each anew, and for a name without its package the JVM looks into every jar: a tenth of a test's time.
    from py4j.java_gateway import JavaClass, JVMView

    ask = JVMView.__getattr__

    def remembered(view: JVMView, name: str) -> object:
        found = ask(view, name)
        if isinstance(found, JavaClass) or "." not in name:  # else a class that may come yet
            view.__dict__[name] = found
        return found

    JVMView.__getattr__ = remembered


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one local session of a test run; penstock must never stop it."""
    from pyspark.sql import SparkSession

    from penstock.spark.local_files import set_modes_without_processes

    directory = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers are this Python, whatever PATH says
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2500m",
        "spark.local.dir": directory / "local",
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.sql.codegen.useIdInClassName": "false",
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.ui.enabled": "false",
        "spark.sql.ui.retainedExecutions": "20",  # what Spark remembers of work that is done fills the heap in an hour
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock-tests")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    set_modes_without_processes(session.sparkContext)
    remember_classes()
    yield session
    session.stop()


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges are due after fewer batches than usual: of 4 layers of a size, of any from 8 on, at 12 at the latest."""
    from penstock.operators.windows import operator

    for name, number in (("MERGE_FAN_IN", 4), ("SLOWDOWN_LIMIT", 8), ("STOP_LIMIT", 12)):
        monkeypatch.setattr(operator, name, number)


@pytest.fixture
def eight_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges are due after eight batches: so few that a test sees one, so many that layers lie side by side before."""
    from penstock.operators.windows import operator

    for name, number in (("MERGE_FAN_IN", 8), ("SLOWDOWN_LIMIT", 24), ("STOP_LIMIT", 32)):
        monkeypatch.setattr(operator, name, number)


@pytest.fixture(autouse=True)
def log_as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes the log from the root and keeps it: what another test of this process ran changes nothing."""
    logger = logging.getLogger("penstock")
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])


@pytest.fixture(autouse=True)
def nothing_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs made by hand have one id: what another test of this process ended says nothing of them."""
    from penstock.control import client

    monkeypatch.setattr(client, "_released", set())


@pytest.fixture
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the owner of a job that nobody runs. Owners that answer have tests without this fixture."""
    monkeypatch.setattr("penstock.control.client.OWNER_TIMEOUT", 0.0)
