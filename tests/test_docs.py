"""What is written is run: examples in docstrings, and the README's pipeline."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.cli.locate import locate
from penstock.cli.main import make_app
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


@pytest.mark.spark
def test_the_readme_pipeline_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "in").mkdir()
    lines = [f'{{"user": "u{n % 2}", "amount": {n}, "at": "2026-01-01T00:0{n}:00Z"}}' for n in range(4)]
    (tmp_path / "in" / "orders.json").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    job = ps.Job(locate("shop:orders"), state="state", spark=spark)
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
    modules: dict[str, str] = {}
    for block in re.findall(r"```python\n# (.*?)```", text, flags=re.DOTALL):
        title, code = block.split("\n", 1)
        name = title.removesuffix(", continued")
        modules[name] = modules.get(name, "") + f"\n\n{code}"
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
