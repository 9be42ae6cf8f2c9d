"""Spark's configuration before there is a JVM: what each place says, which one counts, and what is penstock's alone."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.clock import UTC, canonical_timezone
from penstock.errors import SettingsError

MASTER: Final = "spark.master"
DRIVER_MEMORY: Final = "spark.driver.memory"
PACKAGES: Final = "spark.jars.packages"
PY_FILES: Final = "spark.submit.pyFiles"
TIMEZONE: Final = "spark.sql.session.timeZone"
"""The setting with the zone in which SQL reads and shows times. It is the user's, except where layers are written."""
SUBMIT_ARGS: Final = "PYSPARK_SUBMIT_ARGS"
"""Variable with the options of ``spark-submit`` for the next JVM of this process or of one below it."""
MASTER_VARIABLE: Final = "PENSTOCK_MASTER"
DEFAULT_MASTER: Final = "local[*]"

# ---- what is penstock's ----------------------------------------------------------------------------------------------

STATE_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.unionOutputPartitioning": "true",
    "spark.sql.codegen.useIdInClassName": "false",  # the number of a stage rises with the layers below it
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has only the years 1677 to 2262 elsewhere
    "spark.sql.parquet.compression.codec": "zstd",
}
"""SQL settings that plans of layers rely on."""
SQL_SETTINGS: Final = STATE_SETTINGS | {
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.files.maxPartitionBytes": "128m",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""SQL settings that the engine's plans rely on; set on our own session or on our clone of the user's."""
_LAYERS: Final = "layers of state are put together partition by partition"
_BATCHES: Final = "each batch uses again what was compiled for the one before"
_FILES: Final = "files of state and of output are written alike by every job"
_ROWS: Final = "rows go between Spark and Python as Arrow"
_READS: Final = "files are divided among tasks by penstock"
_REASONS: Final = {
    "spark.sql.adaptive.enabled": _LAYERS,
    "spark.sql.unionOutputPartitioning": _LAYERS,
    "spark.sql.codegen.useIdInClassName": _BATCHES,
    "spark.sql.parquet.outputTimestampType": _FILES,
    "spark.sql.parquet.compression.codec": _FILES,
    "spark.sql.execution.arrow.localRelationThreshold": _ROWS,
    "spark.sql.execution.arrow.pyspark.enabled": _ROWS,
    "spark.sql.sources.partitionOverwriteMode": "an attempt replaces what it has staged before, as a whole",
    "spark.sql.files.maxPartitionBytes": _READS,
    "spark.sql.sources.parallelPartitionDiscovery.threshold": _READS,
}
"""Why a setting of ``SQL_SETTINGS`` cannot be another one, for people."""
_ELSEWHERE: Final = {
    MASTER: "The master has an option of its own. Write 'penstock run … --master M', or master in [tool.penstock].",
    "spark.sql.shuffle.partitions": (
        "State has one partition for each task that runs at a time. Set spark.default.parallelism instead."
    ),
    "spark.remote": "Spark Connect gives no access to plans and cached blocks. Leave it out: sessions are classic.",
}
"""Settings that are refused, with what to do instead."""


def check_setting(name: str, value: str, *, shown: str) -> None:
    """Refuse a setting that Spark or penstock would not follow.

    Args:
        name: of the setting.
        value: its text.
        shown: how the user wrote it, for the message, such as ``--conf a=b``.

    Raises:
        SettingsError: it is no setting of Spark, or contradicts what penstock needs, with the reason.

    >>> check_setting("spark.executor.memory", "2g", shown="--conf spark.executor.memory=2g")
    """
    if not name.startswith("spark."):
        msg = f"{shown}: Names of Spark's settings begin with 'spark.'. Write for example spark.{name}."
        raise SettingsError(msg)
    if name in _ELSEWHERE:
        msg = f"{shown}: {_ELSEWHERE[name]}"
        raise SettingsError(msg)
    if name in SQL_SETTINGS and not _is_same(SQL_SETTINGS[name], value):
        msg = f"{shown}: It is always {SQL_SETTINGS[name]} in penstock, for {_REASONS[name]}. Leave it out."
        raise SettingsError(msg)
    if name == "spark.submit.deployMode" and value.lower() != "client":
        msg = f"{shown}: The driver is the process that runs the job, so only client works. Leave it out."
        raise SettingsError(msg)
    if name == "spark.api.mode" and value.lower() != "classic":
        msg = f"{shown}: {_ELSEWHERE['spark.remote']}"
        raise SettingsError(msg)
    if name == DRIVER_MEMORY and not _MEMORY.fullmatch(value):
        msg = f"{shown}: {value!r} is no amount of memory. Write a whole number with its unit, such as 2g or 1500m."
        raise SettingsError(msg)


_MEMORY: Final = re.compile(r"[1-9]\d*(k|m|g|t)b?", re.IGNORECASE)


def _is_same(ours: str, value: str) -> bool:
    return ours.lower() == value.strip().lower()


_MASTERS: Final = re.compile(
    r"local|local\[([1-9]\d*|\*)(\s*,\s*\d+)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|(spark|k8s)://.+"
)


def check_master(master: str) -> str:
    """The master, if Spark knows its kind.

    Raises:
        SettingsError: it does not.

    >>> check_master("local[2]")
    'local[2]'
    """
    if _MASTERS.fullmatch(master):
        return master
    msg = (
        f"Spark has no master {master!r}. Write 'penstock run … --master M' (or PENSTOCK_MASTER=M), where M is "
        "local[*], local[4], spark://HOST:PORT, yarn or k8s://URL."
    )
    raise SettingsError(msg)


# ---- what each place says --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationLayer:
    """What one place says about Spark.

    Attributes:
        origin: the place, for people: ``command line``, or a file's path.
        settings: text by the name of a setting; the master is ``spark.master``.
    """

    origin: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfiguration:
    """What all places say about Spark.

    Attributes:
        layers: of the places, the one that counts most last.
        rest: words of ``SUBMIT_ARGS`` that are no settings.
    """

    layers: tuple[ConfigurationLayer, ...]
    rest: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The text that counts, by the name of its setting."""
        return {name: value for layer in self.layers for name, value in layer.settings.items()}

    @property
    def origins(self) -> dict[str, str]:
        """The place whose text counts, by the name of the setting."""
        return {name: layer.origin for layer in self.layers for name in layer.settings}

    def to_environment(self) -> dict[str, str]:
        """Variables with which a process makes its session with this configuration.

        Files that Spark reads itself are left to it.
        """
        settings = {
            name: value
            for layer in self.layers
            if not layer.origin.endswith(DEFAULTS_FILE)
            for name, value in layer.settings.items()
        }
        master = settings.pop(MASTER, None)
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        variables = {SUBMIT_ARGS: shlex.join([*words, *(self.rest or (_SHELL,))])}
        return variables if master is None else {**variables, MASTER_VARIABLE: master}


DEFAULTS_FILE: Final = "spark-defaults.conf"
_SHELL: Final = "pyspark-shell"
_SETTING_OF: Final = {
    "--master": MASTER,
    "--driver-memory": DRIVER_MEMORY,
    "--packages": PACKAGES,
    "--py-files": PY_FILES,
    "--archives": "spark.archives",
    "--deploy-mode": "spark.submit.deployMode",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--driver-cores": "spark.driver.cores",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-library-path": "spark.driver.extraLibraryPath",
    "--exclude-packages": "spark.jars.excludes",
    "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory",
    "--files": "spark.files",
    "--jars": "spark.jars",
    "--name": "spark.app.name",
    "--num-executors": "spark.executor.instances",
    "--repositories": "spark.jars.repositories",
    "--total-executor-cores": "spark.cores.max",
}
"""Settings by the options of ``spark-submit`` that set them."""
_WITHOUT_VALUE: Final = frozenset({"--verbose", "-v", "--supervise", "--load-spark-defaults"})


def read_configuration(
    environment: Mapping[str, str] | None = None,
    *,
    project: ConfigurationLayer | None = None,
    options: ConfigurationLayer | None = None,
) -> SparkConfiguration:
    """What all places say: options, else the environment, else the project's file, else Spark's own defaults file.

    Args:
        environment: variables; those of this process by default.
        project: what the project's file says.
        options: what the command line says.
    """
    environment = os.environ if environment is None else environment
    submitted, rest = _submitted(environment.get(SUBMIT_ARGS) or _SHELL)
    layers = [_defaults(environment), project, ConfigurationLayer(origin=SUBMIT_ARGS, settings=submitted)]
    if environment.get(MASTER_VARIABLE):
        layers.append(ConfigurationLayer(origin=MASTER_VARIABLE, settings={MASTER: environment[MASTER_VARIABLE]}))
    layers.append(options)
    return SparkConfiguration(layers=tuple(each for each in layers if each is not None and each.settings), rest=rest)


def configured_timezone() -> str:
    """The time zone of a session that penstock makes: that of Spark's configuration, else UTC.

    It is read without a JVM, so that a plan knows it. The machine's zone has no part in it: a job must compute the
    same on another machine.
    """
    return canonical_timezone(read_configuration().settings.get(TIMEZONE) or UTC)


def _submitted(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings that options of ``spark-submit`` set, and all other words.

    >>> _submitted("--conf a=b=c --driver-memory=2g --verbose pyspark-shell")
    ({'a': 'b=c', 'spark.driver.memory': '2g'}, ('--verbose', 'pyspark-shell'))
    """
    by_conf: dict[str, str] = {}
    by_option: dict[str, str] = {}
    rest: list[str] = []
    words = iter(shlex.split(text))
    for word in words:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):  # the program, then its own arguments
            rest += [word, *words]
        elif word in _WITHOUT_VALUE:
            rest.append(word)
        else:
            value = value if equals else next(words, "")
            if option in ("--conf", "-c"):
                name, _, value = value.partition("=")
                by_conf[name] = value
            elif option in _SETTING_OF:
                by_option[_SETTING_OF[option]] = value
            else:
                rest += [option, value]
    return by_conf | by_option, tuple(rest)  # as in Spark, an option counts more than the setting's name


def _defaults(environment: Mapping[str, str]) -> ConfigurationLayer | None:
    """What ``spark-defaults.conf`` says; ``None`` if there is none."""
    found = importlib.util.find_spec("pyspark")
    home = environment.get("SPARK_HOME") or (Path(found.origin).parent if found and found.origin else "")
    path = Path(environment.get("SPARK_CONF_DIR") or Path(home, "conf"), DEFAULTS_FILE)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    return ConfigurationLayer(origin=str(path), settings=dict(_properties(text.splitlines())))


def _properties(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, *value = re.split(r"\s*[=:]\s*|\s+", line.strip(), maxsplit=1)
        if value and not name.startswith("#"):
            yield name, value[0]


# ---- for people ------------------------------------------------------------------------------------------------------

_SECRET: Final = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)


def setting_shown(name: str, value: str) -> str:
    """A setting for people, without its value if that may be a secret.

    >>> setting_shown("spark.hadoop.fs.s3a.secret.key", "abc"), setting_shown("spark.driver.memory", "2g")
    ('spark.hadoop.fs.s3a.secret.key=(hidden)', 'spark.driver.memory=2g')
    """
    return f"{name}={'(hidden)' if _SECRET.search(name) or _SECRET.search(value) else value}"
