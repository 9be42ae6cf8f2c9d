"""Penstock init, test; the templates."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.text import Text

from penstock.cli.options import epilogue
from penstock.cli.output import ExitCode, Output, UsageError
from penstock.errors import GraphError, SettingsError
from penstock.handles import check_name

# ----------------------------------------------------------------------------------------------------
# ``penstock init``: its words and options.

INIT_HELP: Final = """\
Make a first project: a pipeline, its tests with crashes in them, and sample data, in five files.

Needs no broker. Nothing that is there is overwritten."""
INIT_EXAMPLES: Final = """\
Examples:
  penstock init                                        in the current folder
  penstock init shop --name sales                      in shop/: sales.py, test_sales.py and so on"""


def add_init(app: App, output: Output) -> None:
    """Add ``init``."""

    def init(
        folder: Annotated[str, Parameter(help="Where to; made if absent.")] = ".",
        /,
        *,
        name: Annotated[str, Parameter(help="Of the pipeline and its module.")] = "orders",
    ) -> int:

        return run_init(output, folder=folder, name=name)

    app.command(init, help=INIT_HELP, help_epilogue=epilogue(INIT_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# ``penstock test``: its words and options.

TEST_HELP: Final = """\
Run the tests of the project in this folder with pytest, and pass arguments on to it."""
TEST_EXAMPLES: Final = """\
Examples:
  penstock test
  penstock test -k dies -x                             what pytest takes
  penstock test -- --help                              what that is"""


def add_test(app: App, output: Output) -> None:
    """Add ``test``."""

    def test(
        *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="For pytest, as they are.")],
    ) -> int:

        return run_tests(output, arguments)

    app.command(test, help=TEST_HELP, help_epilogue=epilogue(TEST_EXAMPLES))


# ----------------------------------------------------------------------------------------------------
# A first project: what its files are, and how they get into a folder without touching what is there. Runs nothing.

TEMPLATES: Final = "templates"
"""The folder beside this module; a name in it is that of the file, with ``orders`` for the project's own."""
_SUFFIX: Final = ".txt"
_STAND_IN: Final = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A project that can be made.

    Attributes:
        name: of the pipeline.
        module: of its file, without ``.py``.
        files: what it consists of, by path.
    """

    name: str
    module: str
    files: dict[str, str]


def plan_starter(name: str) -> Starter:
    """The files of a project.

    Raises:
        SettingsError: the name cannot be that of a pipeline and of a module.

    >>> sorted(plan_starter("sales").files)
    ['.gitignore', 'README.md', 'sales.py', 'sample.py', 'test_sales.py']
    """
    module = module_of(name)
    words = {"name": name, "module": module}
    folder = resources.files("penstock.cli") / TEMPLATES
    files = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        target = entry.name.removesuffix(_SUFFIX).replace(_STAND_IN, module)
        target = f".{target}" if target == "gitignore" else target
        files[target] = Template(entry.read_text(encoding="utf-8")).substitute(words)
    return Starter(name=name, module=module, files=files)


def module_of(name: str) -> str:
    """The module's name that goes with a pipeline's.

    Raises:
        SettingsError: there is none, or it would hide another module.

    >>> module_of("web-orders")
    'web_orders'
    """
    try:
        check_name("name of a pipeline", name)
    except GraphError as error:
        msg = f"--name: {error}"
        raise SettingsError(msg) from error
    module = re.sub(r"\W", "_", name).lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        msg = f"--name {name}: {module!r} cannot be the name of a Python module; begin with a letter"
        raise SettingsError(msg)
    if module == "sample" or module in sys.stdlib_module_names or _is_installed(module):
        msg = f"--name {name}: {module}.py would hide the module {module!r} that is there already; choose another name"
        raise SettingsError(msg)
    return module


def write_starter(starter: Starter, folder: Path) -> None:
    """Write all files, or none if one of them is there.

    Raises:
        SettingsError: a file is there already; or the folder cannot be written.
    """
    there = [name for name in starter.files if (folder / name).exists()]
    if there:
        msg = f"{folder} has {', '.join(there)} already; nothing was written: name a new folder"
        raise SettingsError(msg)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in starter.files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        msg = f"cannot write {error.filename or folder}: {error.strerror}"
        raise SettingsError(msg) from error


def _is_installed(module: str) -> bool:
    """Whether a package of that name is installed; a file in the current folder does not count."""
    found = importlib.util.find_spec(module)
    origin = None if found is None else found.origin
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


# ----------------------------------------------------------------------------------------------------
# ``penstock init``: says what was made and what comes next. Makes nothing itself.


def run_init(output: Output, *, folder: str, name: str) -> int:
    """Make the project, and tell the next steps.

    Raises:
        SettingsError: the name cannot be one, or a file is there already.
    """
    starter = plan_starter(name)
    write_starter(starter, Path(folder))
    output.result(Text(f"made in {os.path.abspath(folder)}: {', '.join(starter.files)}"))
    output.result(Text("next:", style="bold"))
    for step in next_steps(starter, folder):
        output.result(Text(f"  {step}"))
    return ExitCode.ENDED


def next_steps(starter: Starter, folder: str) -> list[str]:
    """Command lines for the reader, in order."""
    return [
        *([f"cd {shlex.quote(folder)}"] if Path(folder) != Path() else []),
        "penstock test",
        "python sample.py make 60",
        f"penstock run {starter.module}:{starter.module} --until caught-up",
        "python sample.py check",
        f"penstock state query {starter.name} totals",
    ]


# ----------------------------------------------------------------------------------------------------
# ``penstock test``: pytest on the project's tests, in this Python. Adds nothing to what pytest says.

INTERRUPTED: Final = 2
MISUSED: Final = 4
NOTHING_FOUND: Final = 5
"""Exit codes of pytest that mean something else than "some failed"."""


def run_tests(output: Output, arguments: Sequence[str]) -> int:
    """Run them with these arguments of pytest's, all if there are none.

    Raises:
        UsageError: pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        msg = "penstock test needs pytest: pip install 'penstock[test]'"
        raise UsageError(msg)
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    child = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=here | os.environ)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then tells what it knows
    try:
        code = exit_code(child.wait())
    finally:
        signal.signal(signal.SIGINT, before)
    if child.returncode == NOTHING_FOUND:
        which = f" that fit {' '.join(arguments)}" if arguments else ""
        output.note(
            f"penstock: no tests here{which}: they are functions test_… in files test_*.py; penstock init makes some"
        )
    return code


def exit_code(code: int) -> ExitCode:
    """Ours for pytest's.

    >>> exit_code(4)
    <ExitCode.USAGE: 64>
    """
    return {0: ExitCode.ENDED, INTERRUPTED: ExitCode.INTERRUPTED, MISUSED: ExitCode.USAGE}.get(code, ExitCode.FAILED)
