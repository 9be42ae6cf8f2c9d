"""The commands ``penstock init``, which makes a project from templates, and ``penstock test``, which runs its tests."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Final, Literal, TypeAlias

from cyclopts import Parameter
from rich.text import Text

from penstock.cli.output import CommandOutput, ExitCode, UsageError
from penstock.errors import GraphError, SettingsError
from penstock.handles import check_name

# ---- penstock init ---------------------------------------------------------------------------------------------------

TEMPLATES: Final = "templates"
"""Folder of the templates; in the name of a template's file, ``orders`` stands for the project's module."""
ProjectTemplate: TypeAlias = Literal["files", "webhook"]
"""What a first project reads from: a folder in ``TEMPLATES``."""
_PORT: Final = 8080
_SUFFIX: Final = ".txt"
_PLACEHOLDER: Final = "orders"


def init(
    folder: Annotated[str, Parameter(help="Folder to copy to; made if absent.")] = ".",
    /,
    *,
    name: Annotated[str, Parameter(help="Name of the pipeline and its module.")] = "orders",
    template: Annotated[ProjectTemplate, Parameter(help="Where its rows come from.")] = "files",
    output: CommandOutput,
) -> int:
    """Make a first project, and print the next steps.

    Raises:
        SettingsError: ``name`` cannot be that of a pipeline and a module, or a file is there already.
    """
    starter = plan_starter(name, template)
    write_starter(starter, Path(folder))
    output.result(Text(f"made in {os.path.abspath(folder)}: {', '.join(starter.files)}"))
    output.result(Text("next:", style="bold"))
    for step in next_steps(starter, folder):
        output.result(Text(f"  {step}"))
    return ExitCode.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A first project.

    Attributes:
        name: the name of the pipeline.
        module: the name of its module.
        files: the text of each file, by path.
        template: what it was made from.
    """

    name: str
    module: str
    files: dict[str, str]
    template: ProjectTemplate = "files"


def plan_starter(name: str, template: ProjectTemplate = "files") -> Starter:
    """The files of a project.

    Raises:
        SettingsError: the name cannot be that of a pipeline and of a module.

    >>> sorted(plan_starter("sales").files)
    ['.gitignore', 'README.md', 'sales.py', 'sample.py', 'test_sales.py']
    """
    module = module_of(name)
    words = {"name": name, "module": module, "port": str(_PORT)}
    folder = resources.files("penstock.cli") / TEMPLATES / template
    files = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        target = entry.name.removesuffix(_SUFFIX).replace(_PLACEHOLDER, module)
        target = f".{target}" if target == "gitignore" else target
        files[target] = Template(entry.read_text(encoding="utf-8")).substitute(words)
    return Starter(name=name, module=module, files=files, template=template)


def module_of(name: str) -> str:
    """The name of the module of a pipeline.

    Raises:
        SettingsError: there is no such name, or it would hide another module.

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
        msg = (
            f"--name {name}: {module!r} cannot be the name of a Python module. Choose a name that begins with a letter."
        )
        raise SettingsError(msg)
    if module == "sample" or module in sys.stdlib_module_names or _is_installed(module):
        msg = f"--name {name}: {module}.py would hide the module {module!r} that exists already. Choose another name."
        raise SettingsError(msg)
    return module


def write_starter(starter: Starter, folder: Path) -> None:
    """Write all files, or none if one of them is there.

    Raises:
        SettingsError: a file is there already; or the folder cannot be written.
    """
    there = [name for name in starter.files if (folder / name).exists()]
    if there:
        msg = f"{folder} has {', '.join(there)} already, so nothing was written. Name a new folder."
        raise SettingsError(msg)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in starter.files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        msg = f"{error.filename or folder} cannot be written: {error.strerror}. Name a folder that you may write to."
        raise SettingsError(msg) from error


def _is_installed(module: str) -> bool:
    """Whether a package of that name is installed; a file in the current folder does not count."""
    found = importlib.util.find_spec(module)
    origin = None if found is None else found.origin
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def next_steps(starter: Starter, folder: str) -> list[str]:
    """The command lines to type next, in order."""
    into = [f"cd {shlex.quote(folder)}"] if Path(folder) != Path() else []
    if starter.template == "webhook":
        return [
            *into,
            "penstock test",
            f"penstock run {starter.module}:{starter.module}",
            "python sample.py send 500      # in another terminal, also while the job is killed and started again",
            "python sample.py check",
        ]
    return [
        *into,
        "penstock test",
        "python sample.py make 60",
        f"penstock run {starter.module}:{starter.module} --until caught-up",
        "python sample.py check",
        f"penstock state query {starter.name} totals",
    ]


# ---- penstock test ---------------------------------------------------------------------------------------------------

INTERRUPTED: Final = 2
MISUSED: Final = 4
NOTHING_FOUND: Final = 5
"""Exit codes of pytest that do not mean "some tests failed"."""


def run_tests(
    *arguments: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Arguments for pytest, passed on as they are.")
    ],
    output: CommandOutput,
) -> int:
    """Run pytest in this Python with these arguments; without any it runs all tests.

    Raises:
        UsageError: pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        msg = "penstock test needs pytest. Run pip install 'penstock[test]'."
        raise UsageError(msg)
    here = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    child = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=here | os.environ)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then prints a summary
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
    """The exit code of penstock for one of pytest.

    >>> exit_code(4)
    <ExitCode.USAGE: 64>
    """
    return {0: ExitCode.ENDED, INTERRUPTED: ExitCode.INTERRUPTED, MISUSED: ExitCode.USAGE}.get(code, ExitCode.FAILED)
