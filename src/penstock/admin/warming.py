"""Makes the archive of Spark's classes: a small job in a JVM of its own, which writes the archive as it ends.

``python -m penstock.admin.warming`` makes it in the background; ``… warming FILE`` is the process with the JVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

import penstock as ps
from penstock.admin.doctor_checks import Finding, fail, ok, warn
from penstock.clock import Clock, SystemClock
from penstock.errors import Domain, PenstockError, SettingsError
from penstock.settings import PREFIX
from penstock.spark.class_archive import VARIABLE, ClassArchive, archive_use, class_archive
from penstock.spark.configuration import (
    DEFAULT_MASTER,
    MASTER,
    MASTER_VARIABLE,
    SUBMIT_ARGS,
    read_configuration,
)
from penstock.spark.jvm import end_jvm

MODULE: Final = "penstock.admin.warming"
LOWEST_PRIORITY: Final = 19
"""What is added to the niceness of a process that makes an archive unasked."""
RUNS: Final = 2
"""Number of runs of the job: the second restores what the first has left."""
ROWS: Final = 200
"""Rows of a file."""
_LIGHT: Final = "-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds compiles little; any other may use what it writes."""


class WarmingFailed(PenstockError):
    """The archive of Spark's classes could not be made. Jobs start without it, more slowly."""

    domain = Domain.EXTERNAL


def make_archive(archive: ClassArchive) -> Path | None:
    """Make the archive, which takes half a minute; ``None`` if another process is making it.

    Raises:
        WarmingFailed: the JVM wrote none, or nothing can be written in the folder.
    """
    try:
        with archive.making() as unfinished:
            if unfinished is None:
                return None
            said = _run_job(archive, unfinished)
            made = archive.publish(unfinished)
    except OSError as error:
        msg = (
            f"The archive of Spark's classes cannot be written in {archive.folder}: {error.strerror or error}. Make it "
            "this user's own folder, or name another with XDG_CACHE_HOME."
        )
        raise WarmingFailed(msg) from error
    if made is None:
        msg = f"Java wrote no archive of Spark's classes: {said or 'it said nothing'}. Jobs start without it."
        raise WarmingFailed(msg)
    return made


def make_in_background(clock: Clock) -> bool:
    """Have a process of lowest priority make the archive where there is none; returns whether one was started.

    The process outlives this one. It is not started for a cluster, without an archive that could be used, or if
    another has tried within a day.
    """
    settings = read_configuration().settings
    if archive_use(os.environ) != "make" or not _is_one_machine(settings.get(MASTER) or DEFAULT_MASTER):
        return False
    archive = class_archive(os.environ, settings)
    if isinstance(archive, str) or archive.is_there or not archive.is_due(clock.wall() / 1_000_000):
        return False
    with suppress(OSError):  # too many processes: the next run tries again
        subprocess.Popen(
            [sys.executable, "-m", MODULE],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True
    return False


def _is_one_machine(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


# ---- for people ------------------------------------------------------------------------------------------------------

FINDING: Final = "class archive"
"""Name of the finding of ``penstock doctor``."""
_MIB: Final = 1 << 20


def class_archive_of(settings: Mapping[str, str], *, make: bool, announce: Callable[[str], None]) -> Finding:
    """Check the archive with which JVMs start sooner.

    Args:
        settings: of Spark's configuration.
        make: make it if there is none, which takes half a minute.
        announce: called with a line before that.
    """
    try:
        use = archive_use(os.environ)
    except SettingsError as error:
        return fail(FINDING, str(error), "a session would be refused with the same words")
    if use == "off":
        return ok(FINDING, f"switched off by {VARIABLE}")
    archive = class_archive(os.environ, settings)
    if isinstance(archive, str):
        return ok(FINDING, f"none can be used, so Spark starts more slowly. {archive}")
    path = archive.find()
    by_run = "penstock run makes one after its first orderly end, or " if use == "make" else ""
    none = f"none yet: {by_run}penstock doctor --warm makes it now"
    if path is None and make:
        announce("writing the archive of Spark's classes")
        none = "another process is writing it"
        try:
            path = make_archive(archive)
        except WarmingFailed as error:
            return warn(FINDING, str(error), f"jobs run without it: correct it, or set {VARIABLE}=off")
    return ok(FINDING, none if path is None else f"{path}, {path.stat().st_size / _MIB:.0f} MiB: Spark starts with it")


# ---- the process with the JVM ----------------------------------------------------------------------------------------


def _run_job(archive: ClassArchive, unfinished: Path) -> str:
    """Run the job in a process; returns the last line that it said if it failed."""
    with tempfile.TemporaryDirectory(prefix="ps-") as home:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, home],
            cwd=home,
            env=_environment(os.environ, archive.options_to_make(unfinished), home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [""])[-1]


def _environment(environment: Mapping[str, str], options: str, home: str) -> dict[str, str]:
    """The environment of the process: nothing of the user's job, and nothing that is written elsewhere."""
    kept = {name: value for name, value in environment.items() if not name.startswith(PREFIX) and name != SUBMIT_ARGS}
    return kept | {
        VARIABLE: "off",
        MASTER_VARIABLE: "local[2]",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": home,
        "SPARK_SUBMIT_OPTS": f"{options} -Djava.io.tmpdir={home} {_LIGHT}",
        "TMPDIR": home,
    }


@ps.pipeline("warming")
def warming(p: ps.Pipeline) -> None:
    """What most jobs do: files, JSON, windows, state, two formats."""
    lines = p.read("lines", ps.files.Source("in", format="text", bounded=True, max_files_per_batch=1))
    parsed, bad = lines.parse_json("value", "id LONG, user STRING, amount DOUBLE, at TIMESTAMP", on_error="split")
    totals = (
        parsed.where("amount > 0")
        .with_watermark("at", delay="5 seconds")
        .group_by("user", ps.tumbling("1 minute"))
        .agg("totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    )
    totals.write("totals-out", ps.files.Sink("out", format="json"))
    totals.late.write("late-out", ps.files.Sink("late", format="parquet"))
    bad.write("bad-out", ps.files.Sink("bad", format="json"))


def _write_lines(folder: Path, run: int) -> None:
    """Three files of rows, each a minute later than the one before."""
    folder.mkdir(exist_ok=True)
    for number in range(run * 3, run * 3 + 3):
        at = (datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=number)).isoformat()
        rows = [json.dumps({"id": each, "user": f"u{each % 7}", "amount": 1.5, "at": at}) for each in range(ROWS)]
        (folder / f"{number}.json").write_text("\n".join([*rows, "{"]) + "\n", encoding="utf-8")


def run_job(home: Path) -> None:
    """Run the job in a folder, which is the current one, and end its JVM, which writes the archive before it ends."""
    for run in range(RUNS):
        _write_lines(home / "in", run)
        ps.Job(warming, state="state").run(until="caught-up")
    end_jvm()


def main() -> int:
    """Make the archive at lowest priority, or run the job in the folder that is named."""
    if sys.argv[1:]:
        run_job(Path(sys.argv[1]))
        return 0
    os.nice(LOWEST_PRIORITY)
    archive = class_archive(os.environ, read_configuration().settings)
    if isinstance(archive, str) or archive.is_there or not archive.is_due(SystemClock().wall() / 1_000_000):
        return 0
    with suppress(WarmingFailed):  # nobody listens; doctor --warm says why
        make_archive(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
