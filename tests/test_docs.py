"""What is written is run: examples in docstrings, the README's pipeline, and a list of who runs all the other pages."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.cli.main import make_app
from penstock.cli.options import load_pipeline
from penstock.cli.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
MODULES = sorted(info.name for info in pkgutil.walk_packages(ps.__path__, "penstock.") if "__main__" not in info.name)


def _asks_spark(name: str) -> bool:
    """Whether an example looks at columns or rows, for which there must be a session."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    examples = re.findall(r"^ *(?:>>>|\.\.\.) .*$", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)
    return any(word in line for line in examples for word in (".preview(", ".schema", "fromDDL("))


@pytest.mark.parametrize("name", [name for name in MODULES if not _asks_spark(name)])
def test_the_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", [name for name in MODULES if _asks_spark(name)])
def test_the_examples_in_docstrings_that_ask_spark_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_module_opens_with_what_it_is_for(name: str) -> None:
    first = (importlib.import_module(name).__doc__ or "").split("\n")[0]
    assert first.endswith((".", ";", ":", ",")) or len(first) > 60, f"{name} opens with {first!r}"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HELP = sorted((ROOT / "tests" / "core" / "cli_golden").glob("*.txt"))


def _command_lines(page: Path) -> list[str]:
    """Lines of code blocks, and examples of a help text, that call penstock; without what follows them."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", text, flags=re.DOTALL) if page.suffix == ".md" else [text]
    found = re.findall(r"^ *(penstock [^\n]*)", "\n".join(blocks), flags=re.MULTILINE)
    lines = [re.split(r" {2,}| *[|;&>#]|\[", line)[0].strip() for line in found]
    return [line for line in lines if "…" not in line and ": " not in line]


@pytest.mark.parametrize("page", [*PAGES, *HELP], ids=lambda page: page.stem)
def test_the_command_lines_that_are_shown_are_understood(page: Path) -> None:
    app = make_app(Output())
    for line in _command_lines(page):
        words = [word for word in shlex.split(line)[1:] if word != "--traceback"]
        _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        assert bound is not None, line


README = {
    "import penstock as ps": "test_docs.py",
    "penstock run shop:orders": "spark/test_command_docs.py",
    "pip install 'penstock[test]'": "crash/newcomer.py",
    "import json": "crash/newcomer.py",
    "python sample.py make": "crash/newcomer.py",
    "penstock savepoint create": "spark/test_command_docs.py",
}
"""Who runs the blocks of the README, by how they begin."""

RUN_BY = {
    "cli.md": "spark/test_command_docs.py",
    "clusters.md": "core/test_spark_options.py spark/test_cluster.py",
    "crash-tutorial.md": "test_docs.py spark/test_command_docs.py",
    "dead-letters.md": "spark/test_dead_letter_docs.py",
    "index.md": "test_docs.py",
    "doctor.md": "core/test_doctor_docs.py",
    "json.md": "core/test_json_language.py",
    "kafka.md": "integration/test_kafka_sink.py",
    "kinesis-leases.md": "core/test_kinesis_docs.py",
    "kinesis.md": "integration/test_kinesis_docs.py",
    "operating.md": "core/test_cli_looking.py",
    "programs.md": "spark/test_pages.py",
    "receivers.md": "spark/test_receivers_job.py spark/test_http_job.py",
    "small-connectors.md": "spark/test_pages.py",
    "sources-files.md": "spark/test_pages.py",
    "tables.md": "spark/test_pages.py",
    "plan.md": "spark/test_command_docs.py spark/test_plan_job.py",
    "sinks-of-your-own.md": "test_docs.py",
    "savepoints.md": "spark/test_command_docs.py spark/test_copies_docs.py",
    "shadow.md": "spark/test_command_docs.py spark/test_copies_docs.py",
    "state-on-disk.md": "spark/test_window_files.py",
    "state-queries.md": "spark/test_state_docs.py",
    "testing.md": "test_docs.py",
    "upgrade-story.md": "crash/test_upgrade_story.py",
    "upgrades.md": "spark/test_command_docs.py spark/test_upgrades.py",
    "windows.md": "spark/test_window_docs.py",
}
"""Who runs the lines, the Python and the SQL of a page: each of these takes all of its kind, or fails."""

NOT_RUN = {
    "make demo ": "measurements, and this run itself: TARGETS says what is run of each",
    "pip install penstock[kafka]": "from the index; the tests of Kafka have the client from the pinned requirements",
    "pip install 'penstock[kinesis]'": "from the index; the tests have boto3 from the pinned requirements, Node too",
    'orders = p.read("orders", ps.kinesis': "a stream of no one: core/test_kinesis_source.py builds it",
    'parsed.write("out", ps.kinesis.Sink(': "likewise",
    "packed = ps.kinesis.Sink(": "likewise",
    "since = ps.kafka.Source(": "sources of Kafka at brokers of no one: core/test_kafka_docs.py builds them all",
    "quick = ps.kafka.Sink(": "likewise a sink",
    "january = ps.kafka.Source(": "as above",
    "secure = ps.kafka.Source(": "as above; integration/test_kafka_security.py reads from a broker that asks for it",
    "clean.group_by(": "the middle of a pipeline, whose whole is in spark/test_state_docs.py",
}
"""Blocks that are only read or built, by how they begin, and why."""

TARGETS = {
    "demo": "crash/test_demo.py",
    "demo-kafka": "integration/test_kafka_demo.py",
    "newcomer": "crash/test_newcomer.py",
    "test": "this run",
    "check": "what continuous integration runs",
    "bench-windows": "measures, for which the machine must do nothing else",
    "bench-checkpoint": "spark/test_bench_short.py",
    "bench-kafka": "as above",
    "bench-kafka-out": "as above",
    "bench-latency": "as above",
    "bench-start": "spark/test_bench_short.py",
    "soak": "spark/test_bench_short.py",
    "docs": "core/test_docs_site.py",
}
"""What is run of each target that the README names: a test, or why it is not in this run."""


def _lines_to_run(page: Path) -> list[str]:
    """Blocks of Python, of SQL, or with command lines; what is only shown has none."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    line = re.compile(r"^(\$ |[A-Z_]+=\S+ )?(penstock|pip|make|python) |^\w+ = |\)\.agg\($|^import ", re.MULTILINE)
    return [text for kind, text in found if kind in {"python", "sql", "sh"} or (not kind and line.search(text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_of_a_page_is_run_by_a_test_or_says_why_not(page: Path) -> None:
    for block in _lines_to_run(page):
        if block.lstrip().startswith(tuple(NOT_RUN)):
            continue
        starts = [name for start, name in README.items() if page.name == "README.md" and block.startswith(start)]
        names = starts or RUN_BY.get(page.name, "").split()
        assert names, f"{page.name}: nobody runs\n{block}"
        for name in names:
            assert page.name in (ROOT / "tests" / name).read_text(encoding="utf-8"), f"{name} knows no {page.name}"


def test_what_is_said_not_to_be_run_is_still_there_and_each_target_too() -> None:
    every = [block.lstrip() for page in PAGES for block in _lines_to_run(page)]
    assert [start for start in NOT_RUN if not any(block.startswith(start) for block in every)] == []
    named = re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert named == list(TARGETS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    tests = [name for name in TARGETS.values() if name.endswith(".py")]
    assert [name for name in tests if not (ROOT / "tests" / name).exists()] == []


def test_the_site_begins_with_lines_of_the_readme() -> None:
    readme, index = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md"))
    begun = re.findall(r"```\n(.*?)```", index, flags=re.DOTALL)[0].splitlines()
    assert [line for line in begun if line not in readme] == []


@pytest.mark.spark
def test_the_readme_pipeline_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "in").mkdir()
    lines = [f'{{"user": "u{n % 2}", "amount": {n}, "at": "2026-01-01T00:0{n}:00Z"}}' for n in range(4)]
    (tmp_path / "in" / "orders.json").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    job = ps.Job(load_pipeline("shop:orders"), state="state", spark=spark)
    assert job.run(until="caught-up").rows_read == {"orders": 4}
    found = spark.read.parquet(str(tmp_path / "out")).select("user", "amount").collect()
    assert [tuple(row) for row in found] == [("u1", 1.0)], "00:01 is closed by 00:03 less 5 seconds, 00:02 is not"


@pytest.mark.spark
def test_the_tutorial_on_testing_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its examples, in their order, as the one test module that a reader would make of them."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), flags=re.DOTALL)
    modules = {text.split("\n", 1)[0].removeprefix("# "): text for text in code if text.startswith("# ")}
    assert modules.keys() == {"conftest.py", "shop.py"}
    shop = ModuleType("shop")
    exec(compile(modules["shop.py"], "shop.py", "exec"), vars(shop))
    monkeypatch.setitem(sys.modules, "shop", shop)
    (tmp_path / "test_shop.py").write_text("\n\n".join(text for text in code if not text.startswith("# ")))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    assert _pytest_in(tmp_path) == 0


@pytest.mark.spark
@pytest.mark.mission("D10")
def test_the_tutorial_on_crashes_runs_and_fails_where_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bug it fails at the points that the page names, in the words that it shows; mended, nowhere."""
    text = (ROOT / "docs" / "crash-tutorial.md").read_text(encoding="utf-8")
    modules = _modules_of(ROOT / "docs" / "crash-tutorial.md")
    monkeypatch.chdir(tmp_path)
    for name in ("alarms", "alarms_mended"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(modules.pop(f"{name}.py"), f"{name}.py", "exec"), vars(module))
    for name, code in modules.items():
        (tmp_path / name).write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    seen = _Seen()

    assert _pytest_in(tmp_path, seen) == 1

    assert modules.keys() == {"test_alarms.py", "test_alarms_mended.py", "test_recovery.py"}
    places = re.findall(r"^FAILED test_alarms\.py::…\[(.+?)\] - AssertionError: (assert .*)$", text, re.MULTILINE)
    assert len(seen.passed) == 1 + (7 - len(places)) + 8 + 2
    assert len(seen.failed) == len(places) == 3
    for (place, words), (name, why) in zip(places, seen.failed.items(), strict=True):
        assert name.endswith(f"wherever_the_job_dies[{place}]")
        assert words in why


@pytest.mark.spark
@pytest.mark.mission("D10")
def test_the_page_on_connectors_of_ones_own_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connectors keep the contracts, and its pipelines write each row once over two runs."""
    modules = _modules_of(ROOT / "docs" / "sinks-of-your-own.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mylib.py").write_text(modules.pop("test_mylib.py"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    loaded = {}
    for name in ("mylib", "saved", "copies"):
        loaded[name] = module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(modules.pop(f"{name}.py"), f"{name}.py", "exec"), vars(module))
    assert not modules
    seen = _Seen()

    assert _pytest_in(tmp_path, seen) == 0, seen.failed
    assert len(seen.passed) > 20

    for numbers in ([1, 2, 3], [4, 5]):
        with closing(sqlite3.connect("shop.db")) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, name TEXT)")
            db.executemany("INSERT INTO orders VALUES (?, 'a')", [(number,) for number in numbers])
        ps.Job(loaded["copies"].copies, state="state", spark=spark).run(until="caught-up")
        ps.Job(loaded["saved"].saved, state="state", spark=spark).run(until="caught-up")
    with closing(sqlite3.connect("copy.db")) as db:
        assert db.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,), (3,), (4,), (5,)]
    with closing(sqlite3.connect("saved.db")) as db:
        found = [value for (value,) in db.execute("SELECT value FROM numbers ORDER BY value")]
    assert found == list(range(len(found)))
    assert found


def _modules_of(page: Path) -> dict[str, str]:
    """The Python blocks of a page by the file that their first line names."""
    modules: dict[str, str] = {}
    for block in re.findall(r"```python\n# (.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        title, code = block.split("\n", 1)
        name = title.removesuffix(", continued")
        modules[name] = modules.get(name, "") + f"\n\n{code}"
    return modules


class _Seen:
    """A plugin of pytest's that keeps what passed, and what failed and why."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)
        elif report.when == "call":
            self.passed.append(report.nodeid)


def _pytest_in(folder: Path, *plugins: object) -> int:
    """Run the tests of a tutorial with the fixture of the page on testing."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), flags=re.DOTALL)
    conftest = next(text for text in code if text.startswith("# conftest.py"))
    (folder / "conftest.py").write_text(conftest.replace("    session.stop()\n", ""))  # it is the session of this run
    without = ["-p", "no:cacheprovider", "-p", "no:faulthandler"]  # that of the run around this one stays on
    options = ["-q", "--import-mode=importlib", *without, f"--rootdir={folder}"]
    return int(pytest.main([*options, "-c", str(folder / "pytest.ini"), str(folder)], plugins=[*plugins]))
