"""What the command line says: help, errors, exit codes. The help is compared with golden text."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.cli_kit import say
from penstock import errors
from penstock.cli.output import MEANINGS, ExitCode, UsageError, exit_code_of, explain

GOLDEN = Path(__file__).parent / "cli_golden"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a module that has a pipeline; its name differs from test to test, for modules are cached."""
    name = re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text(
        "import penstock as ps\n\n\n@ps.pipeline('orders')\ndef orders(p):\n    pass\n\n\ndef helper():\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    return name


COMMANDS = [
    "",
    "run",
    "checkpoints",
    "plan",
    "demo",
    "savepoint",
    "savepoint create",
    "savepoint list",
    "savepoint show",
    "savepoint drop",
    "savepoint export",
    "stop",
    "settle",
    "rewind",
    "list",
    "status",
    "checkpoint",
    "lag",
    "late",
    "verify",
    "gc",
    "skip",
    "shadow",
    "doctor",
    "init",
    "test",
    "--install-completion",
    "deadletter",
    "deadletter list",
    "deadletter show",
    "deadletter replay",
    "deadletter drop",
    "import",
    "import kcl",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples_and_exit_codes(command):
    said = say(*command.split(), "--help")
    golden = GOLDEN / f"{command.replace(' ', '-') or 'penstock'}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(said.out)

    assert said.code == 0
    assert said.err == ""
    assert said.out == golden.read_text()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["savepoint", "--help"], []], ids=" ".join)
def test_what_lists_commands_imports_none_of_them(words):
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"code = dispatch({words!r}, Output())\n"
        "loaded = {name for name in sys.modules if name.startswith(('penstock.', 'pyspark', 'pyarrow'))}\n"
        "allowed = {'penstock.cli', 'penstock.cli.main', 'penstock.cli.output', 'penstock.errors'}\n"
        "sys.exit(code or sorted(loaded - allowed) or 0)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_version_is_one_line():
    said = say("--version")

    assert said.code == 0
    assert re.fullmatch(r"penstock \d+\.\d+\S*\n", said.out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rum"], 'Unknown command "rum". Did you mean "run"?'),
        (["run", "shop:orders", "--sate", "x"], "Unknown option: --sate. Did you mean --state?"),
        (["run", "shop:orders", "--until", "cought-up"], 'Did you mean "caught-up"?'),
        (["run", "shop:orders", "--retained", "many"], 'unable to convert "many" into int'),
        (["run"], "PIPELINE requires an argument"),
        (["run", "shop:orders", "--checkpoint-every", "fast"], "Setting 'checkpoint_every' is 'fast'"),
        (["run", "shop:orders", "--retained", "0"], "retained is 0"),
        (["run", "shop", "--no-parent"], "'shop' is not module:pipeline. Write for example shop:orders."),
        (["run", "shop.py:orders", "--no-parent"], "Write for example shop:orders."),
        (["doctor", "--sate", "x"], "Unknown option: --sate. Did you mean --state?"),
        (["init", "--nam", "x"], "Unknown option: --nam. Did you mean --name?"),
        (["--install-completion", "--shell", "bahs"], 'Did you mean "bash"?'),
        (["demo", "--rows", "3"], "--rows 3 is too few"),
    ],
)
def test_what_is_wrong_in_a_command_line_is_named_and_ends_with_64(arguments, expected):
    said = say(*arguments)

    assert said.code == 64
    assert expected in said.err
    assert "Traceback" not in said.err


def test_a_wrong_module_is_answered_with_the_nearest_one_here(shop):
    said = say("run", f"{shop[:-1]}:orders", "--no-parent")

    assert said.code == 64
    assert f"Did you mean '{shop}'?" in said.err


def test_a_wrong_pipeline_is_answered_with_the_nearest_one(shop):
    said = say("run", f"{shop}:order", "--no-parent")

    assert said.code == 64
    assert f"Module '{shop}' has no pipeline 'order'. Did you mean 'orders'?" in said.err


def test_a_function_that_is_no_pipeline_is_told_how_to_become_one(shop):
    said = say("run", f"{shop}:helper", "--no-parent")

    assert said.code == 64
    assert '@ps.pipeline("helper")' in said.err


def test_an_error_in_the_users_module_has_the_users_line_and_no_trace(tmp_path, monkeypatch):
    (tmp_path / "broken_shop.py").write_text("import json\n\nrate = json.loads('{')\n")
    monkeypatch.chdir(tmp_path)

    said = say("run", "broken_shop:orders", "--no-parent")

    assert said.code == 65
    assert said.err.startswith("penstock: broken_shop.py:3 in <module>: JSONDecodeError")
    assert "Traceback" not in said.err


def test_a_syntax_error_has_its_line(tmp_path, monkeypatch):
    (tmp_path / "torn_shop.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.chdir(tmp_path)

    said = say("run", "torn_shop:orders", "--no-parent")

    assert said.code == 65
    assert "torn_shop.py:2: SyntaxError" in said.err


def test_a_module_that_the_users_module_misses_is_not_taken_for_the_users(tmp_path, monkeypatch):
    (tmp_path / "needy_shop.py").write_text("import no_such_thing_anywhere\n")
    monkeypatch.chdir(tmp_path)

    said = say("run", "needy_shop:orders", "--no-parent")

    assert said.code == 65
    assert "needy_shop.py:1" in said.err


def test_traceback_shows_all_frames(tmp_path, monkeypatch):
    (tmp_path / "traced_shop.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)

    said = say("run", "traced_shop:orders", "--no-parent", traceback=True)

    assert "Traceback (most recent call last)" in said.err
    assert "ZeroDivisionError" in said.err


def test_a_missing_java_is_named():
    assert explain(errors.EngineFailed("[JAVA_GATEWAY_EXITED] Java gateway process exited"))[1].startswith(
        "Spark needs Java 17"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("?"), 64),
        (errors.SettingsError("?"), 64),
        (errors.GraphError("?"), 65),
        (errors.SchemaMismatch("?"), 65),
        (errors.StateDirectoryRefused("?"), 65),
        (errors.StateIncompatible("?"), 65),
        (errors.CheckpointUnreadable("?"), 65),
        (errors.LogGap("?"), 65),
        (errors.SinkIdentityConflict("?"), 65),
        (errors.PlanOutdated("?"), 65),
        (errors.GenerationFenced("?"), 69),
        (errors.JobIsRunning("?"), 69),
        (errors.InternalError("?"), 70),
        (RuntimeError("?"), 70),
        (errors.EngineDied("?"), 75),
        (errors.EngineFailed("?"), 1),
        (errors.UserFunctionError("?"), 1),
        (errors.SourceChanged("?"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(error, code):
    assert exit_code_of(error) == code


def test_exit_codes_are_frozen_and_each_has_a_sentence_here_and_in_the_docs():
    assert {code.value for code in ExitCode} == {0, 1, 2, 4, 64, 65, 69, 70, 75, 130}
    assert set(MEANINGS) == set(ExitCode)
    with pytest.raises(TypeError):
        MEANINGS[ExitCode.ENDED] = "?"
    documented = (ROOT / "docs" / "cli.md").read_text()
    for code, sentence in MEANINGS.items():
        assert f"| {code.value} | {sentence} |" in documented
