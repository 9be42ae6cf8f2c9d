"""Options about Spark that all commands with a session share: from the command line and from ``pyproject.toml``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter

from penstock.cli.output import UsageError
from penstock.cli.project_file import SECTION, find_project
from penstock.errors import SettingsError, did_you_mean
from penstock.spark.configuration import (
    DRIVER_MEMORY,
    MASTER,
    PACKAGES,
    PY_FILES,
    ConfigurationLayer,
    SparkConfiguration,
    check_master,
    check_setting,
    read_configuration,
    setting_shown,
)

if TYPE_CHECKING:
    from penstock.cli.output import Output

COMMAND_LINE: Final = "command line"
_SEVERAL: Final = {"negative": "", "show_default": False}


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """How a command makes its session; each may be given in ``[tool.penstock]`` too.

    Attributes:
        master: where Spark runs.
        conf: settings of Spark, each as ``KEY=VALUE``.
        packages: Maven coordinates of jars.
        py_files: Python files for the driver and the workers.
        driver_memory: heap of the driver's JVM.
    """

    master: Annotated[str | None, Parameter(help="Spark master; all cores of this machine by default.")] = None
    conf: Annotated[
        tuple[str, ...],
        Parameter(**_SEVERAL, help="KEY=VALUE: a setting of Spark, such as spark.executor.memory=2g."),
    ] = ()
    packages: Annotated[
        tuple[str, ...],
        Parameter(**_SEVERAL, help="GROUP:ARTIFACT:VERSION of jars that Spark downloads, several with commas."),
    ] = ()
    py_files: Annotated[
        tuple[str, ...],
        Parameter(**_SEVERAL, help=".py, .zip or .egg files for driver and workers; the pipeline may be in one."),
    ] = ()
    driver_memory: Annotated[
        str | None, Parameter(help="Heap of the driver's JVM, such as 4g; 1g by default, as Spark has it.")
    ] = None

    def words(self) -> list[str]:
        """The options as a command line has them."""
        words = [] if self.master is None else ["--master", self.master]
        for name, values in (("--conf", self.conf), ("--packages", self.packages), ("--py-files", self.py_files)):
            words += [word for value in values for word in (name, value)]
        return words if self.driver_memory is None else [*words, "--driver-memory", self.driver_memory]

    def read(self) -> SparkConfiguration:
        """Spark's configuration with these options; changes nothing.

        Raises:
            UsageError: an option, or the section of the file, cannot be understood.
            SettingsError: a setting contradicts what penstock needs; the message has the reason.
        """
        project = find_project()
        if project is not None:
            path = str(project.path)
            of_project = _layer(
                path,
                master=project.options.get("master"),
                conf=project.conf,
                packages=project.lists.get("packages", ()),
                py_files=[
                    each if "://" in each else str(project.path.parent / each)
                    for each in _split(project.lists.get("py-files", ()))
                ],
                driver_memory=project.options.get("driver-memory"),
                shown=f"{path}: {SECTION} ",
            )
        of_options = _layer(
            COMMAND_LINE,
            master=self.master,
            conf=_pairs(self.conf),
            packages=self.packages,
            py_files=self.py_files,
            driver_memory=self.driver_memory,
            shown="--",
        )
        return read_configuration(project=None if project is None else of_project, options=of_options)

    def use(self) -> SparkConfiguration:
        """Make this process and its children use these options for sessions; return the configuration.

        The driver finds modules in the Python files from now on, so a pipeline may be in one.

        Raises:
            UsageError: see ``read``.
            SettingsError: see ``read``.
        """
        found = self.read()
        if _of_user(found):
            os.environ.update(found.to_environment())
        for path in _split([found.settings.get(PY_FILES, "")]):
            folder = str(Path(path).parent) if path.endswith(".py") else path
            if "://" not in path and folder not in sys.path:
                sys.path.insert(1, folder)  # after the current folder
        return found


SparkArguments: TypeAlias = Annotated[SparkOptions, Parameter(name="*")]
NO_OPTIONS: Final = SparkOptions()


def _of_user(found: SparkConfiguration) -> dict[str, str]:
    """The settings that the command line and the project's file give, by name."""
    mine = [each for each in found.layers if each.origin == COMMAND_LINE or each.origin.endswith(".toml")]
    return {name: value for layer in mine for name, value in layer.settings.items()}


def note_ignored(found: SparkConfiguration, output: Output) -> None:
    """Print the options without effect, because the pipeline's module has made a session without them."""
    from penstock.spark.session import current_session, is_classic

    session = current_session()
    if session is None or not is_classic(session):
        return
    conf = session.sparkContext.getConf()
    wanted = {name: found.settings[name] for name in _of_user(found) if name != PY_FILES}  # Spark rewrites its paths
    ignored = [setting_shown(name, value) for name, value in wanted.items() if conf.get(name, None) != value]
    if ignored:
        output.note(
            f"penstock: a Spark session runs already, made by the pipeline's module, without {', '.join(ignored)}: "
            "give them where it is built, or leave it out, so that a session is made with them",
            style="yellow",
        )


# ---- one place -------------------------------------------------------------------------------------------------------


def _layer(
    origin: str,
    *,
    master: str | None,
    conf: Mapping[str, str],
    packages: Iterable[str],
    py_files: Iterable[str],
    driver_memory: str | None,
    shown: str,
) -> ConfigurationLayer:
    """What one place says, checked. ``shown`` is what messages have before the name of an option."""
    for name, value in conf.items():
        check_setting(name, value, shown=f"{shown}conf {setting_shown(name, value)}")
    settings = dict(conf)
    options = {
        "packages": (PACKAGES, ",".join(_package(each, shown) for each in _split(packages))),
        "py-files": (PY_FILES, ",".join(_py_file(each, shown) for each in _split(py_files))),
        "driver-memory": (DRIVER_MEMORY, driver_memory or ""),
    }
    for option, (name, value) in options.items():
        if not value:
            continue
        if conf.get(name, value) != value:
            msg = f"{shown}{option} {value} and {shown}conf {name}={conf[name]} contradict each other. Leave one out."
            raise UsageError(msg)
        check_setting(name, value, shown=f"{shown}{option} {value}")
        settings[name] = value
    if master is not None:
        settings[MASTER] = _master(master, origin)
    return ConfigurationLayer(origin=origin, settings=settings)


def _master(master: str, origin: str) -> str:
    try:
        return check_master(master)
    except SettingsError as error:
        if origin == COMMAND_LINE:
            raise
        msg = f"{origin}: {error}"
        raise SettingsError(msg) from error


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    """Settings by name, from all ``--conf KEY=VALUE``; the last of one name counts.

    Raises:
        UsageError: one is not written like that.

    >>> _pairs(["spark.executor.memory=2g", "spark.x=a=b"])
    {'spark.executor.memory': '2g', 'spark.x': 'a=b'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            msg = f"--conf {text}: Write it as KEY=VALUE, such as --conf spark.executor.memory=2g."
            raise UsageError(msg)
        found[name.strip()] = value
    return found


def _split(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


_COORDINATES: Final = re.compile(r"[^:\s/]+:[^:\s/]+:[^:\s/]+")


def _package(text: str, shown: str) -> str:
    if _COORDINATES.fullmatch(text):
        return text
    msg = (
        f"{shown}packages {text}: Write it as GROUP:ARTIFACT:VERSION, such as org.apache.spark:spark-avro_2.13:4.1.0. "
        "A jar of this machine goes into spark.jars with conf."
    )
    raise UsageError(msg)


def _py_file(text: str, shown: str) -> str:
    """The absolute path of a file, or the address of one that Spark fetches."""
    if not text.endswith((".py", ".zip", ".egg")):
        kind = "It is a folder. Zip what is in it." if Path(text).is_dir() else "It is none of .py, .zip and .egg."
        msg = f"{shown}py-files {text}: {kind} Spark takes no other to its workers."
        raise UsageError(msg)
    if "://" in text:
        return text
    path = Path(text).absolute()
    if not path.is_file():
        near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near, otherwise="Make it first.")
        msg = f"{shown}py-files {text}: There is no such file{hint}"
        raise UsageError(msg)
    return str(path)
