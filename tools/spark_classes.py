"""Makes the archive of Spark's classes that the JVMs of a test run map instead of loading and verifying each class.

`python tools/spark_classes.py ARCHIVE` runs a small job in a JVM that writes, as it ends, what it has loaded. With the
archive a session costs half of the processor's time, and tests start a hundred. Only this Java and these jars can
use it: a JVM that cannot ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

OPTIONS = "-Xlog:cds*=off -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""No word of each class that cannot be archived; a JVM that lives for seconds compiles little."""


def main(archive: Path) -> int:
    """Write the archive, whole or not at all."""
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={unfinished}"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory(prefix="ps-") as home:
        os.chdir(home)
        _work(Path(home))
        _end()
    if not unfinished.is_file():
        return 1
    unfinished.replace(archive)
    return 0


def _work(home: Path) -> None:
    """What most jobs of the tests do: files, JSON, windows, state, a Python worker, and all of it once more."""
    import penstock as ps
    from crash.copied_job import job
    from crash.input_files import InputFiles

    files = InputFiles(home / "in", seed=1)
    for _ in range(2):
        files.drop(2)
        ps.Job(job, state="state").run(until="caught-up")


def _end() -> None:
    """The JVM ends when its standard input does, and then writes the archive."""
    from pyspark import SparkContext

    process = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - there is no public way
    process.stdin.close()
    process.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
