"""``penstock init`` and ``penstock test``: what is made, what is refused, what is passed on."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.cli_kit import say
from penstock.cli.project import module_of, plan_starter
from penstock.errors import SettingsError

GOLDEN = Path(__file__).parent / "cli_golden" / "init.text.txt"


def test_a_project_is_five_files_and_the_next_steps_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = say("init", "shop")

    assert said.code == 0
    names = sorted(path.name for path in (tmp_path / "shop").iterdir())
    assert names == [".gitignore", "README.md", "orders.py", "sample.py", "test_orders.py"]
    found = said.out.replace(str(tmp_path), "/home/you")
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


@pytest.mark.parametrize("template", ["files", "webhook"])
@pytest.mark.parametrize("name", ["orders", "web-orders", "sales.v2"])
def test_what_is_made_is_python_and_speaks_of_its_own_name(name, template):
    starter = plan_starter(name, template)

    for path, text in starter.files.items():
        assert "$" not in text, path
        if path.endswith(".py"):
            ast.parse(text)
    assert f'@ps.pipeline("{name}")' in starter.files[f"{starter.module}.py"]
    assert f"penstock run {starter.module}:{starter.module}" in starter.files["README.md"]
    assert f"from {starter.module} import {starter.module}" in starter.files[f"test_{starter.module}.py"]


def test_a_webhook_is_made_with_a_client_that_sends_until_it_is_acknowledged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = say("init", "hook", "--template", "webhook")

    assert said.code == 0
    names = sorted(path.name for path in (tmp_path / "hook").iterdir())
    assert names == [".gitignore", "README.md", "orders.py", "sample.py", "test_orders.py"]
    assert "python sample.py send 500" in said.out
    (tmp_path / "hook" / "acknowledged.txt").write_text("0\n1\n")
    done = subprocess.run(
        [sys.executable, "sample.py", "check"], cwd=tmp_path / "hook", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "20 orders were acknowledged: 20 lost, 0 doubled\n")


def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path):
    (tmp_path / "sample.py").write_text("mine")

    said = say("init", str(tmp_path))

    assert said.code == 64
    assert f"{tmp_path} has sample.py already, so nothing was written" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["sample.py"]
    assert (tmp_path / "sample.py").read_text() == "mine"


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    said = say("init", str(tmp_path / "file" / "shop"))

    assert said.code == 64
    assert "cannot be written" in said.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Orders", "is not a valid name"),
        ("2fast", "begins with a letter"),
        ("class", "begins with a letter"),
        ("json", "would hide the module 'json'"),
        ("pyspark", "would hide the module 'pyspark'"),
        ("sample", "would hide the module 'sample'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name, says):
    with pytest.raises(SettingsError, match=says):
        module_of(name)


def test_the_orders_of_the_sample_are_made_and_those_that_are_missing_are_noticed(tmp_path):
    assert say("init", str(tmp_path)).code == 0

    def sample(*arguments):
        command = [sys.executable, "sample.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert sample("make", "9").stdout == "9 files in in/, 500 lines each\n"
    assert len(list((tmp_path / "in").glob("orders-*.json"))) == 9
    missing = sample("check")
    assert missing.returncode == 1
    assert "2,994 orders in 14 windows that have closed: 2,994 lost, 0 doubled" in missing.stdout
    assert "0 of 9 unreadable lines kept; 7 windows are still open" in missing.stdout
    assert "sample.py make 60" in sample("mke").stderr


# ------------------------------------------------------------------------------------------------------ penstock test


@pytest.fixture
def project(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os\n\ndef test_good():\n    assert os.environ['PYSPARK_PYTHON']\n\ndef test_bad():\n    assert False\n"
    )
    return tmp_path


def penstock(folder, *arguments, prepare=""):
    lines = ["import sys", prepare, "from penstock.cli.main import main"]
    lines += [f"sys.argv = ['penstock', *{list(arguments)!r}]", "main()"]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-k", "good", "-q"], 0, "1 passed, 1 deselected"),
        (["-p", "no:cacheprovider"], 1, "1 failed, 1 passed"),
        (["--no-such-option"], 64, "unrecognized arguments: --no-such-option"),
    ],
)
def test_arguments_are_passed_on_and_exit_codes_are_ours(project, arguments, code, says):
    done = penstock(project, "test", *arguments)

    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_no_tests_are_told_and_are_no_success(tmp_path):
    done = penstock(tmp_path, "test")

    assert done.returncode == 1
    assert "penstock: no tests here" in done.stderr


def test_without_pytest_the_extra_is_named(project):
    done = penstock(project, "test", prepare="sys.modules['pytest'] = None")

    assert done.returncode == 64
    assert "penstock test needs pytest. Run pip install 'penstock[test]'." in done.stderr
