"""A job on a cluster: on two executors of ``local-cluster``, and on a standalone master with two workers.

The pipeline and a function that its workers call are in a zip, and options come from the command line or from
``pyproject.toml``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.driver import LIGHT
from crash.waiting import until
from integration.ports import free_ports
from page_kit import DOCS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TAX = """\
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType


def doubled(amount):
    return amount * 2


with_tax = udf(doubled, DoubleType())
"""
EXECUTORS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of JVMs that live for seconds."""
SHOP = """\
import json
from pathlib import Path

import penstock as ps
from tax import with_tax


def look(frame, epoch):
    context = frame.sparkSession.sparkContext
    jvm, conf = context._jvm, context.getConf()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = {
        "master": context.master,
        "executors": context._jsc.sc().getExecutorMemoryStatus().size() - 1,
        "partitions": int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")),
        "heap": jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
        "conf": conf.get("spark.executorEnv.SHOP", None),
        "jar": loader.getResource("shop-in-a-jar.txt") is not None,
    }
    Path("found.json").write_text(json.dumps(found))


@ps.pipeline("shop")
def shop(p):
    orders = p.read("orders", ps.files.Source("in/", schema="user STRING, amount DOUBLE, at TIMESTAMP"))
    taxed = orders.transform(lambda frame: frame.withColumn("amount", with_tax("amount")))
    taxed.for_each_batch("look", look)
    timed = taxed.with_watermark("at", delay="1 second")
    sums = timed.group_by("user", ps.tumbling("1 minute")).agg("sums", ps.agg.sum("amount").alias("total"))
    sums.write("out", ps.files.Sink("out/", format="json"))
"""
ORDERS = [
    {"user": user, "amount": amount, "at": f"2026-01-01T00:{minute:02}:00Z"}
    for minute, (user, amount) in enumerate([("ann", 1), ("bob", 2), ("ann", 3), ("bob", 4), ("ann", 5)])
]
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local.shop</groupId><artifactId>shop-jar</artifactId><version>1.0</version></project>
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as archive:
        archive.writestr("shop.py", SHOP)
        archive.writestr("tax.py", TAX)
    return tmp_path


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Everything listens on the loopback interface alone; Unix sockets have short paths."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("PENSTOCK_", "PYSPARK_"))}
    with tempfile.TemporaryDirectory(prefix="pt-") as short:
        yield clean | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": short,
            "SPARK_LOCAL_DIRS": short,
            "SPARK_SUBMIT_OPTS": LIGHT,
            "SPARK_DAEMON_JAVA_OPTS": LIGHT,
        }


def penstock(home: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


RUN = ("run", "shop:shop", "--until", "caught-up", "--no-parent")


def found(home: Path, done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """What the driver saw, once the output is checked: windows that have ended, of both users."""
    log = home / "state" / "shop.engine.log"
    assert done.returncode == 0, done.stderr + (log.read_text()[-3_000:] if log.exists() else "")
    rows = [json.loads(line) for path in (home / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted((row["user"], row["total"]) for row in rows) == [("ann", 2), ("ann", 6), ("bob", 4)]
    answer: dict[str, object] = json.loads((home / "found.json").read_text())
    return answer


def test_two_executors_of_local_cluster_run_a_pipeline_of_a_zip_with_all_options(
    home: Path, environment: dict[str, str]
) -> None:
    place = home / "repository" / "local" / "shop" / "shop-jar" / "1.0"
    place.mkdir(parents=True)
    (place / "shop-jar-1.0.pom").write_text(POM)
    with zipfile.ZipFile(place / "shop-jar-1.0.jar", "w") as jar:
        jar.writestr("shop-in-a-jar.txt", "here")
    options = ("--master", "local-cluster[2,1,1024]", "--py-files", "shop.zip", "--driver-memory", "700m")
    settings = {
        "spark.executor.extraJavaOptions": EXECUTORS,
        "spark.executorEnv.SHOP": "from the command line",
        "spark.jars.repositories": (home / "repository").as_uri(),
        "spark.jars.ivy": str(home / "ivy"),
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = penstock(
        home, environment, *RUN, *options, *words, "--state", "state", "--packages", "local.shop:shop-jar:1.0"
    )
    assert found(home, done) == {
        "master": "local-cluster[2,1,1024]",
        "executors": 2,
        "partitions": 2,
        "heap": pytest.approx(700, abs=40),
        "conf": "from the command line",
        "jar": True,
    }


# ----------------------------------------------------------------------------------------------- a standalone master


def started(home: Path, environment: dict[str, str], name: str, *words: str) -> subprocess.Popen[bytes]:
    """A process of a standalone cluster, started by the scripts of the package from pip, as clusters.md has it."""
    page = (DOCS / "clusters.md").read_text(encoding="utf-8")
    assert f"$SPARK/bin/spark-class org.apache.spark.deploy.{words[0]} --host 127.0.0.1 " in page
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    script = Path(spec.origin).parent / "bin" / "spark-class"
    with (home / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(script), f"org.apache.spark.deploy.{words[0]}", *words[1:]],
            cwd=home,
            env=environment | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(home / "work")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def workers_alive(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # a master that is starting answers with its first page, whatever it is asked for
        return 0


@pytest.fixture
def standalone(home: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a master with two workers of two cores each; all are ended by their ids."""
    port, page, *pages = free_ports(4)
    at = ("--host", "127.0.0.1")
    address = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master = ("master.Master", *at, "--port", str(port), "--webui-port", str(page))
        processes.append(started(home, environment, "master", *master))
        for number, own in enumerate(pages):
            worker = ("worker.Worker", *at, "--webui-port", str(own), "--cores", "2", "--memory", "1g", address)
            processes.append(started(home, environment, f"worker-{number}", *worker))
        until(120, "two workers", lambda: workers_alive(page) == 2, lambda: (home / "master.log").read_text()[-2_000:])
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_standalone_master_with_two_workers_runs_it_with_the_options_of_the_projects_file(
    home: Path, environment: dict[str, str], standalone: str
) -> None:
    for name, text in (("shop.py", SHOP), ("tax.py", TAX)):
        (home / name).write_text(text)
    lacking = penstock(home, environment, *RUN, "--state", "other", "--master", standalone)
    assert lacking.returncode == 1, lacking.stderr
    assert "No module named 'tax'. If workers lack tax, install it there, or have 'penstock run … --py-files'" in (
        " ".join(lacking.stderr.split())
    )
    for name in ("shop.py", "tax.py"):
        (home / name).unlink()
    (home / "pyproject.toml").write_text(
        f'[tool.penstock]\nstate = "state"\nmaster = "{standalone}"\npy-files = ["shop.zip"]\ndriver-memory = "600m"\n'
        'conf = {"spark.executorEnv.SHOP" = "from the file", "spark.executor.memory" = "512m", '
        f'"spark.executor.extraJavaOptions" = "{EXECUTORS}"}}\n'
    )
    seen = penstock(home, environment, "doctor", "--no-spark")
    assert re.search(rf"^ok +configuration: master {standalone} \(", seen.stdout, re.MULTILINE), seen.stdout
    assert found(home, penstock(home, environment, *RUN)) == {
        "master": standalone,
        "executors": 2,
        "partitions": 4,
        "heap": pytest.approx(600, abs=40),
        "conf": "from the file",
        "jar": False,
    }
