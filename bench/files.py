"""A folder of many small files, and one big file: penstock against Structured Streaming's file source.

make bench-files                                       100,000 small files and one of 500 MB; about 15 minutes
make bench-files ARGS="--files 10000 --megabytes 100"  a tenth of it

Both read the same JSON in one JVM, one engine after the other, filter it and write Parquet, and end when they have
caught up (``until="caught-up"``, ``availableNow``); what they wrote must be equal. A round over a few files before only
warms the JVM. Afterwards, first with files that stay, then with ``after_read="archive"``: the bytes of the largest
checkpoint of a run over the small files and of one that finds nothing new, and the seconds of a look that finds none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from engines import emptied  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP"
FILES, MEGABYTES = 100_000, 500
ROWS_OF_A_SMALL_FILE = 5
HEAP = "6g"


def line(number: int) -> str:
    """One row as JSON."""
    second = number % 86_400
    at = f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    return f'{{"id":{number},"user":"user{number % 1000}","amount":{number % 997}.5,"at":"{at}"}}\n'


def make_small(folder: Path, files: int) -> None:
    """Write so many files of a few rows each."""
    folder.mkdir()
    for file in range(files):
        rows = range(file * ROWS_OF_A_SMALL_FILE, (file + 1) * ROWS_OF_A_SMALL_FILE)
        (folder / f"{file:06}.json").write_text("".join(map(line, rows)), encoding="utf-8")


def make_big(folder: Path, megabytes: int) -> None:
    """Write one file of that size."""
    folder.mkdir()
    size, number = 0, 0
    with (folder / "big.json").open("w", encoding="utf-8") as file:
        while size < megabytes * 1_000_000:
            rows = "".join(map(line, range(number, number + 10_000)))
            size, number = size + len(rows), number + 10_000
            file.write(rows)


def penstock(spark: SparkSession, rows: Path, folder: Path, after_read: str | None = None) -> float:
    """Seconds that a job takes from its start to its end."""
    import penstock as ps

    @ps.pipeline("bench")
    def copy(p: Any) -> None:
        read = p.read("rows", ps.files.Source(str(rows), schema=SCHEMA, after_read=after_read))
        read.where("amount > 1").write("out", ps.files.Sink(str(folder / "out"), format="parquet"))

    began = time.monotonic()
    ps.Job(copy, state=folder / "state", spark=spark, checkpoint_every="5s").run(until="caught-up")
    return time.monotonic() - began


def structured_streaming(spark: SparkSession, rows: Path, folder: Path) -> float:
    """Seconds that a query takes from its start to its end."""
    began = time.monotonic()
    writer = spark.readStream.schema(SCHEMA).json(str(rows)).where("amount > 1").writeStream.format("parquet")
    query = (
        writer.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start(str(folder / "out"))
    )
    query.awaitTermination()
    return time.monotonic() - began


ENGINES: dict[str, Callable[[SparkSession, Path, Path], float]] = {
    "penstock": penstock,
    "structured streaming": structured_streaming,
}


def compared(spark: SparkSession, rows: Path, home: Path, rounds: int) -> dict[str, float]:
    """Each engine's median of seconds; what they wrote in the first round must be equal."""
    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    for number in range(rounds):
        with emptied(home / "round") as folder:
            for name, engine in ENGINES.items():
                (folder / name).mkdir()
                seconds[name].append(engine(spark, rows, folder / name))
                print(f"{rows.name}: {name} {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
            if number == 0:
                _require_equal(spark, folder)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _require_equal(spark: SparkSession, folder: Path) -> None:
    sums = [
        spark.read.parquet(str(folder / name / "out"))
        .selectExpr("count(*)", "sum(id)", "sum(xxhash64(user, at) % 1000003)")
        .first()
        for name in ENGINES
    ]
    if sums[0] != sums[1] or not sums[0] or not sums[0][0]:
        msg = f"the engines wrote different rows: {sums}"
        raise AssertionError(msg)


def idle(spark: SparkSession, rows: Path, home: Path, after_read: str | None) -> tuple[int, int, float]:
    """The bytes of the largest checkpoint of a run and of one of an idle job, and the seconds of an idle look."""
    import penstock as ps
    from penstock.checkpoint import paths
    from penstock.checkpoint.log import read_history
    from penstock.filesystem.local import LocalFileSystem

    with emptied(home / "idle") as folder:
        penstock(spark, rows, folder, after_read)
        largest = max(entry.stat().st_size for entry in (folder / "state" / "bench" / "log").glob("*.json"))
        penstock(spark, rows, folder, after_read)
        history = read_history(LocalFileSystem(folder / "state" / "bench"), "bench")
        manifest = history.restore_point
        if manifest is None:
            msg = "a run that has caught up has left no checkpoint"
            raise AssertionError(msg)
        entry, _ = history.manifests[manifest.checkpoint]
        size = (folder / "state" / "bench" / paths.entry(entry)).stat().st_size
        position = next(task.position for task in manifest.tasks if task.task == "rows")
        source = ps.files.Source(str(rows), schema=SCHEMA, after_read=after_read)
        began = time.monotonic()
        waiting = source.backlog(position)
        seconds = time.monotonic() - began
        if waiting.files:
            msg = f"{waiting.files} files wait after a run that has caught up"
            raise AssertionError(msg)
        return largest, size, round(seconds, 2)


def main() -> int:
    arguments = _arguments()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {HEAP} pyspark-shell"
    from penstock.spark.session import make_session

    home = result.bench_folder()
    print(
        f"writing {arguments.files:,} small files, and one of {arguments.megabytes} MB …", file=sys.stderr, flush=True
    )
    make_small(home / "warm", 200)
    make_small(home / "small", arguments.files)
    make_big(home / "big", arguments.megabytes)
    spark = make_session("bench")
    compared(spark, home / "warm", home, 1)
    figures: dict[str, result.Figure] = {}
    table: list[list[object]] = []
    for name in ("small", "big"):
        found = compared(spark, home / name, home, arguments.rounds)
        ours, theirs = found["penstock"], found["structured streaming"]
        figures[f"{name}_file{'s' if name == 'small' else ''}_ratio"] = round(theirs / ours, 2)
        table.append([name, round(ours, 1), round(theirs, 1), round(theirs / ours, 2)])
    result.show("Seconds from start to end", ["files", "penstock", "structured streaming", "theirs / ours"], table)
    looks: list[list[object]] = []
    for after_read, end in ((None, "_of_kept"), ("archive", "")):  # the last one, since it moves the files away
        largest, size, seconds = idle(spark, home / "small", home, after_read)
        figures |= {
            f"largest_checkpoint_bytes{end}": largest,
            f"checkpoint_bytes{end}": size,
            f"idle_listing{end}_s": seconds,
        }
        looks.append([after_read or "files stay", largest, size, seconds])
    columns = ["after_read", "largest checkpoint, bytes", "idle checkpoint, bytes", "idle look, s"]
    result.show("A folder that was read", columns, looks)
    if arguments.files == FILES and arguments.megabytes == MEGABYTES:
        print(f"written: {result.save('files', figures, settings=vars(arguments), details=[*table, *looks])}")
    result.tell(figures)
    spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
