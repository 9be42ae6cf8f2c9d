"""A first project: what its files are, and how they get into a folder without touching what is there. Runs nothing."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from penstock.errors import GraphError, SettingsError
from penstock.ids import check_name

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
    folder = resources.files("penstock.operate") / TEMPLATES
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
