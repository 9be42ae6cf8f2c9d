"""What the environment says to penstock and to Spark: unknown names, impossible values, what leads astray. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Final

from penstock.checkpoint.names import near
from penstock.errors import SettingsError
from penstock.operate.doctor.findings import Finding, fail, ok, warn
from penstock.settings import PREFIX, Settings, read_settings

_OTHERS: Final = ("MASTER", "FAILPOINTS", "FAILPOINTS_RECORD", "LIFELINE")
"""What penstock reads besides the settings of a job."""

_ARMED: Final = f"{PREFIX}FAILPOINTS"


def look_at_environment(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """Variables of penstock's own, then those of Spark that change what is started."""
    yield ours_of(environment)
    yield from spark_variables_of(environment, executable)


def known_variables() -> frozenset[str]:
    """Every variable that penstock reads."""
    return frozenset(PREFIX + name.upper() for name in (*(field.name for field in fields(Settings)), *_OTHERS))


def ours_of(environment: Mapping[str, str]) -> Finding:
    """Which of ours are set, and whether they can be."""
    given = {name: value for name, value in sorted(environment.items()) if name.startswith(PREFIX)}
    unknown = given.keys() - known_variables()
    shown = [name if name in unknown else f"{name}={value}" for name, value in given.items()]  # it may be a secret
    found = ", ".join(shown) or f"no {PREFIX}* variable is set"
    if unknown:
        fix = "; ".join(f"{name} is not read{_nearest(name, known_variables())}" for name in sorted(unknown))
        return warn("environment", found, fix)
    try:
        read_settings({}, environment=environment)
    except SettingsError as error:
        return fail("environment", found, f"{error}; correct it or unset it")
    if given.get(_ARMED):
        return warn("environment", found, f"unset {_ARMED}: jobs crash on purpose where it says")
    return ok("environment", found)


def spark_variables_of(environment: Mapping[str, str], executable: str) -> Iterator[Finding]:
    """What would lead Spark elsewhere: another Spark, Spark Connect, another Python for the workers."""
    remote = next((name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if environment.get(name)), None)
    if remote is not None:
        found = f"{remote}={environment[remote]}"
        yield fail("spark variables", found, f"unset {remote}: it makes Spark Connect sessions, which are refused")
    home = environment.get("SPARK_HOME")
    if home:
        fix = "unset SPARK_HOME, unless that Spark has the version of the package pyspark to the last digit"
        yield warn("spark variables", f"SPARK_HOME={home}, so its jars are taken and not PySpark's own", fix)
    worker = environment.get("PYSPARK_PYTHON")
    if worker and worker != executable:
        fix = f"unset it, or set it to {executable}, unless it has the same Python and packages"
        yield warn("spark variables", f"PYSPARK_PYTHON={worker} runs the workers, not the Python of this command", fix)


def _nearest(name: str, known: Collection[str]) -> str:
    return near(name, known).replace("; there is ", "; those that are: ")
