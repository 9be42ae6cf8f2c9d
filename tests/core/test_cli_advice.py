"""Advice in messages can be followed: every command and every option that a text of the package names is there.

The texts are taken from the source: all that are not docstrings. An option counts for the command that is named before
it in the same text (``penstock run … --fresh``). An option without one counts for the commands whose own words the
module has; other modules do not know which command is read, so they name it.
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.main import COMMANDS, make_app
from penstock.cli.output import Output

PACKAGE = Path(penstock.__file__).parent
OWN = {
    "admin/dead_letter_replay.py": ("deadletter replay",),
    "admin/dead_letters.py": ("deadletter show", "deadletter replay"),
    "admin/doctor.py": ("doctor",),
    "admin/doctor_kafka.py": ("doctor",),
    "admin/plan_document.py": ("run",),
    "admin/shadow_pipeline.py": ("shadow",),
    "admin/start_plan.py": ("run", "plan"),
    "admin/state_read.py": ("state query",),
    "admin/status.py": ("lag",),
    "cli/options.py": ("run", "plan", "shadow"),
    "cli/spark_options.py": ("run", "plan", "shadow", "doctor", "state query", "deadletter show", "deadletter replay"),
    "job/start.py": ("run", "plan"),
}
"""Commands that alone can print the texts of a module; each of them has every option that these name."""
OF_ALL = {"--traceback", "--help", "--version"}
NO_COMMANDS = {
    "counts",
    "gives",
    "has",
    "knows",
    "needs",
    "reads",
    "carries",
    "is",
    "and",
    "makes",
    "itself",
    "does",
    "preview",
}
"""Words behind "penstock" in a sentence about the library, and in the name of a Spark application."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND = re.compile(r"\bpenstock (--install-completion|[a-z]+)(?: ([a-z]+))?")


def options() -> dict[str, set[str]]:
    """The options of each command, as the real command line takes them."""
    app = make_app(Output(out=io.StringIO(), err=io.StringIO()))
    found: dict[str, set[str]] = {}
    for command in COMMANDS:
        part = app
        for word in command.name.split():
            part = part[word]
        names = set() if command.function is None else {n for a in part.assemble_argument_collection() for n in a.names}
        found[command.name] = {name for name in names if name.startswith("--")} | OF_ALL
    return found


OPTIONS = options()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module with its line; f-strings whole, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in ast.walk(node)} - {id(node)}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


def own_commands(module: str) -> tuple[str, ...]:
    """The commands whose functions a module of the command line has."""
    dotted = f"penstock.{module.removesuffix('.py').replace('/', '.')}"
    return tuple(command.name for command in COMMANDS if (command.function or "").partition(":")[0] == dotted)


def wrong(module: str, text: str) -> Iterator[str]:
    """What a text names that the command line does not have."""
    named: str | None = None
    found = sorted([*COMMAND.finditer(text), *OPTION.finditer(text)], key=lambda found: found.end())
    for match in found:
        if match[0] == "--install-completion":
            continue  # a command that looks like an option
        if match.re is COMMAND:
            family, member = match[1], f"{match[1]} {match[2]}"
            if family not in NO_COMMANDS:
                named = member if member in OPTIONS else family
                if named not in OPTIONS:
                    yield f"there is no command {named!r}"
                    return
        elif named is not None:
            if match[0] not in OPTIONS[named]:
                yield f"penstock {named} has no {match[0]}"
        elif module in OWN:
            yield from (f"penstock {each} has no {match[0]}" for each in OWN[module] if match[0] not in OPTIONS[each])
        elif module == "cli/output.py":
            if not any(match[0] in each for each in OPTIONS.values()):
                yield f"no command has {match[0]}"
        elif not any(match[0] in OPTIONS[each] for each in own_commands(module)):
            yield f"{match[0]} of which command? Name it, as in 'penstock run … {match[0]}'"


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("folder", sorted({module.rpartition("/")[0] for module in MODULES}))
def test_every_command_and_option_that_a_message_names_is_there(folder: str) -> None:
    found = [
        f"{module}:{line}: {what} ({text.strip()!r})"
        for module in MODULES
        if module.rpartition("/")[0] == folder and module != "cli/main.py"
        for line, text in texts(PACKAGE / module)
        if " " in text
        for what in wrong(module, text)
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_example_of_a_help_text_has_commands_and_options_that_are_there(command) -> None:
    named = f"penstock {command.name} "

    assert list(wrong("cli/main.py", named + command.help)) == []
    for line in command.examples.splitlines():
        own = re.split(r" (?:\||--) ", line)[0]  # the rest is jq's, or pytest's
        assert list(wrong("cli/main.py", own if "penstock" in own else named + own)) == [], line


def test_the_modules_whose_commands_are_listed_here_exist() -> None:
    assert set(OWN) <= set(MODULES)
    assert {each for commands in OWN.values() for each in commands} <= set(OPTIONS)


def test_a_wrong_advice_is_found() -> None:
    assert list(wrong("checkpoint/log.py", "begin with penstock rewind … --fresh")) == []
    assert list(wrong("checkpoint/log.py", "begin with --fresh")) != []
    assert list(wrong("checkpoint/log.py", "begin with penstock rewind … --take-over")) != []
    assert list(wrong("checkpoint/log.py", "penstock savepoints drop")) != []
    assert list(wrong("admin/start_plan.py", "say --until")) != []
