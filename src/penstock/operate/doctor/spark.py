"""Spark itself: whether a classic session comes up here, and what a session of the user's own lacks.

The trial runs in a process of its own, so that a JVM which hangs is only late, and nothing of it stays here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.job.session import CONTEXT_SETTINGS
from penstock.operate.doctor.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIAL: Final = "penstock.operate.doctor.spark_trial"
PATIENCE: Final = 120.0
"""Seconds for a session and one small job in it."""

DEGRADES: Final[Mapping[str, str]] = {
    "spark.scheduler.mode": "checkpoints written in the background take turns with batches as they come, not fairly",
    "spark.locality.wait": "tasks wait up to 3 s for a core that has their rows",
    "spark.python.worker.reuse": "each task starts a Python worker, about 0.1 s",
    "spark.python.unix.domain.socket.enabled": "rows go to Python workers through TCP",
    "spark.sql.codegen.cache.maxEntries": "code of plans that were compiled is thrown away and compiled again",
    "spark.sql.ui.explainMode": "each plan is written out at length, some ms a batch",
    "spark.python.sql.dataFrameDebugging.enabled": "each column that is made asks the JVM six times, some ms a batch",
    "spark.ui.enabled": "Spark's own web page keeps the jobs of the last batches in the driver's memory",
}
"""What a session is without a setting that ours have; others of ours are matters of taste or of this machine."""

_SWITCHES: Final = {"true", "false"}


def session_of(spark: SparkSession) -> Iterator[Finding]:
    """What degrades on a session that penstock did not make, whose context can no longer be changed."""
    conf = spark.sparkContext.getConf()
    yield from lacking({name: conf.get(name, None) for name in CONTEXT_SETTINGS})


def lacking(there: Mapping[str, str | None]) -> Iterator[Finding]:
    """One line for each setting that ours have and this one has not, where that costs something.

    Args:
        there: what is set, by the names of :data:`penstock.job.session.CONTEXT_SETTINGS`.
    """
    missing = [name for name in DEGRADES if not _will_do(CONTEXT_SETTINGS[name], there.get(name))]
    for name in missing:
        found = f"{name} is {there.get(name) or 'not set'}: {DEGRADES[name]}"
        yield warn("your session", found, f'build the session with .config("{name}", "{CONTEXT_SETTINGS[name]}")')
    if not missing:
        yield ok("your session", f"has all {len(DEGRADES)} settings that matter")


def try_spark(run: Callable[[], tuple[int, str, str]] | None = None) -> Finding:
    """Make a session as ``penstock run`` does, run one job with a Python worker in it, and end it."""
    try:
        code, out, err = (run or _in_a_process)()
    except subprocess.TimeoutExpired:
        fix = "look at what the JVM does (jps, jstack), at the name of this host, and at SPARK_SUBMIT_OPTS"
        return fail("spark", f"no session within {PATIENCE:g} s", fix)
    told = _last_json(out)
    if code != 0 or told is None:
        return fail("spark", "no session: " + (_reason(err) or f"its process ended with {code}"), _remedy(err))
    found = f"Spark {told['version']}: a classic session and a job with Python workers in {told['seconds']:.1f} s"
    return ok("spark", f"{found}, on {told['cores']} cores")


def _in_a_process() -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _last_json(out: str) -> dict[str, Any] | None:
    for line in reversed(out.strip().splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def _reason(err: str) -> str:
    """The line that says most, without frames: what the JVM died of, or else the last error."""
    lines = [line.strip() for line in err.splitlines() if re.search(r"(Error|Exception)\b.*:", line)]
    died = [line.split('" ', 1)[1] for line in lines if re.match(r'Exception in thread ".*" ', line)]
    return [*lines, *died[:1]][-1] if lines else ""


def _remedy(err: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in err:
        return f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
    if "UnknownHost" in err or "BindException" in err:
        return "set SPARK_LOCAL_IP=127.0.0.1, or give this host's name an address in /etc/hosts"
    return f"see the lines above about java; python -m {TRIAL} shows everything that Spark says"


def _will_do(ours: str, there: str | None) -> bool:
    if there is None:
        return False
    if ours.isdecimal():
        number = re.match(r"\d+", there)
        is_least = ours != "0"
        return number is not None and (int(number[0]) >= int(ours) if is_least else int(number[0]) == 0)
    return there.lower() == ours.lower() if ours in _SWITCHES else there == ours
