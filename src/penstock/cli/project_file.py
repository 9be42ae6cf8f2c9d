"""The section ``[tool.penstock]`` of ``pyproject.toml``: options that every command takes from there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import Token

from penstock.cli.output import UsageError
from penstock.errors import did_you_mean, sentence
from penstock.settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cyclopts import App, ArgumentCollection

NAME: Final = "pyproject.toml"
SECTION: Final = "[tool.penstock]"
_TEXTS: Final = ("state", "checkpoint-every", "stop-timeout", "master", "driver-memory")
_NUMBERS: Final = ("max-rows-per-batch", "retained")
_LISTS: Final = ("packages", "py-files")
CONF: Final = "conf"
OF_SPARK: Final = frozenset({"master", "driver-memory", *_LISTS, CONF})
"""Keys that are merged with Spark's configuration, not taken as they are."""
KEYS: Final = frozenset({*_TEXTS, *_NUMBERS, *_LISTS, CONF})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFile:
    """What the section says.

    Attributes:
        path: of the file. Relative paths in it start at its folder.
        options: text by the name of an option, without its dashes.
        lists: the values of options that may be given several times.
        conf: Spark's settings.
    """

    path: Path
    options: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The keys that it has."""
        return [*self.options, *self.lists, *([CONF] if self.conf else [])]


def find_project(folder: Path | None = None) -> ProjectFile | None:
    """The section of the nearest file that has one, from ``folder`` (by default the current one) upwards.

    Raises:
        UsageError: a file on the way cannot be read, or the section has an unknown key or an impossible value.
    """
    start = Path.cwd() if folder is None else folder
    for place in (start, *start.parents):
        path = place / NAME
        if path.is_file():
            section = _read(path).get("tool", {}).get("penstock")
            if section is not None:
                return _project(path, section)
    return None


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        msg = f"{path} cannot be read: {sentence(error)} {SECTION} is looked for there."
        raise UsageError(msg) from error
    return found


def _project(path: Path, section: object) -> ProjectFile:
    if not isinstance(section, dict):
        msg = f"{path}: tool.penstock is {section!r}, but must be a section {SECTION}."
        raise UsageError(msg)
    unknown = next((key for key in section if key not in KEYS), None)
    if unknown is not None:
        hint = did_you_mean(unknown, KEYS, otherwise=f"The keys are {', '.join(sorted(KEYS))}.")
        msg = f"{path}: {SECTION} has an unknown key {unknown!r}{hint}"
        raise UsageError(msg)
    for key, value in section.items():
        _check(path, key, value)
    options = {key: str(section[key]) for key in (*_TEXTS, *_NUMBERS) if key in section}
    if "state" in options and "://" not in options["state"]:
        options["state"] = _from_here(path.parent / options["state"])
    return ProjectFile(
        path=path,
        options=options,
        lists={key: tuple(section[key]) for key in _LISTS if key in section},
        conf=dict(_flat(path, section.get(CONF, {}))),
    )


def _check(path: Path, key: str, value: object) -> None:
    if key in _TEXTS:
        is_right, must = isinstance(value, str) and bool(value), 'a text, such as "2g" or "./state"'
    elif key in _NUMBERS:
        is_right, must = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif key in _LISTS:
        is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
        must = 'a list of texts, such as ["shop.zip"]'
    else:
        is_right, must = isinstance(value, dict), 'a table, such as {"spark.executor.memory" = "2g"}'
    if not is_right:
        msg = f"{path}: {key} of {SECTION} is {value!r}, but must be {must}."
        raise UsageError(msg)


def _flat(path: Path, table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their whole names: without quotes, TOML makes tables of the parts between dots."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(path, value, f"{name}.")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, (str, int, float)):
            yield name, str(value)
        else:
            msg = f"{path}: {name} of {SECTION} conf is {value!r}, but must be a text or a number."
            raise UsageError(msg)


def _from_here(path: Path) -> str:
    """The path as messages show it: from the current folder on if it is below."""
    short = os.path.relpath(path)
    return str(path) if short.startswith("..") else short


# ---- as options of a command -----------------------------------------------------------------------------------------


def fill_from_project(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give a command those options of the section that it takes and that neither it nor the environment were given.

    Options of Spark are left out: ``penstock.cli.spark_options`` merges them.

    Raises:
        UsageError: the section cannot be understood.
    """
    takes = {name: argument for argument in arguments if argument.parse for name in argument.names}
    if "--state" not in takes:
        return
    project = find_project()
    for key, value in project.options.items() if project is not None else ():
        argument = takes.get(f"--{key}")
        if key in OF_SPARK or argument is None or argument.has_tokens or _variable(key) in os.environ:
            continue
        argument.append(Token(keyword=f"--{key}", value=value, source=str(project.path if project else NAME)))


def _variable(key: str) -> str:
    return PREFIX + key.replace("-", "_").upper()
