"""A job's directory made by hand: a log whose files are really there, numbers of its last run, and a clock at noon."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from core.checkpoint_values import condemn, entries, keyed, manifest, pin, read_to
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.entry_codec import encode
from penstock.clock import SystemClock, WallTime
from penstock.control.client import host_identity
from penstock.facts import PartitionLag, SourceLag
from penstock.graph.queries import SideOutput, SideOutputSink
from penstock.handles import Committable, FileRef, LayerRef, TaskSnapshot
from penstock.observability.report import Report
from penstock.observability.status_file import StatusFile
from penstock.observability.status_file import encode as encode_hint

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND
NOBODY = 4_999_999
"""No process has such a number: whoever claimed with it is surely gone."""

WEB = Claim(host="web-1#9f86d081884c", pid=4242, started=NOON, version="0.1")
"""Of another machine: the same in every golden text. Whether it lives has to be asked, which takes 2 s."""

GONE = Claim(host=host_identity(), pid=NOBODY, started=NOON, version="0.1")


class Noon(SystemClock):
    """Waits take their time, but it is always a quarter past twelve."""

    def wall(self) -> WallTime:
        return WallTime(NOON + 900 * SECOND)


def put(job: Path, path: str, content: bytes) -> FileRef:
    """A file as a task would have written it; what the log says of it."""
    place = job / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return FileRef(path=path, length=len(content), sha256=sha256(content).hexdigest())


def layer_in(job: Path, name: str, content: bytes = b"rows", generation: int = 0) -> LayerRef:
    path = f"state/totals/{generation}/{name}/part-0.parquet"
    return LayerRef(name=name, level=0, rows=3, files=(put(job, path, content),))


def staged_in(job: Path, checkpoint: int, content: bytes = b"output", generation: int = 0) -> Committable:
    """Output of a kind that tells nothing of where it goes."""
    path = f"staged/out/{generation}/{checkpoint}/part-0"
    ref = put(job, path, content)
    return Committable(uid="out", kind="files/1", checkpoint=checkpoint, target="there", files=(ref,))


def taken(number: int, parent: int | None, *layers: LayerRef, **rest):
    """A checkpoint that was complete so many seconds past noon."""
    tasks = (read_to(number), keyed(*layers, detail={"horizon": None}), TaskSnapshot(task="out", watermarks=(NOON,)))
    made = manifest(number, parent, tasks=tasks, **rest)
    at = NOON + number * SECOND
    return replace(made, triggered=at, completed=at + 250_000)


def write_log(state: Path, *bodies, first: int = 0) -> Path:
    """The log of job ``orders``; gives its directory."""
    for entry in entries(*bodies, first=first):
        path = state / entry.job / paths.entry(entry.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(entry))
    return state / "orders"


def a_job(state: Path, *more, claim: Claim = GONE) -> Path:
    """Three checkpoints of a job that died: one condemned, one a savepoint, one with an output that is open."""
    job = state / "orders"
    old, one, two = layer_in(job, "a", b"old"), layer_in(job, "b", b"rows of 1"), layer_in(job, "c", b"rows of two")
    write_log(
        state,
        claim,
        taken(0, None, old),
        taken(1, 0, one),
        pin("before-v2", 1, owner="alice"),
        taken(2, 1, one, two, open=(staged_in(job, 2),)),
        condemn(0, files=[old.files[0].path]),
        *more,
    )
    return job


LAG = SourceLag(
    task="in",
    rows=1_204,
    seconds=12.5,
    eta_seconds=90.0,
    partitions={
        "clicks-0": PartitionLag(4, 0.5, position=96, end=100, rate=20.0, name="0"),
        "clicks-1": PartitionLag(1_200, 12.5, position=8_800, end=10_000, rate=100.5, name="1"),
    },
)

REPORT = Report(
    state="running",
    restored=0,
    batches={"in": 12},
    rows_read={"in": 8_896},
    rows_written={"out": 3_000, "bad-out": 2},
    counters={("totals", "late"): 7, ("totals", "missing_time"): 3, ("totals", "fired"): 9},
    checkpoints=2,
    failed_checkpoints=1,
    last_checkpoint=2,
    published={"out": 1},
    restarts=1,
    lag={"in": LAG},
    late_by={("totals", "in/1"): 4},
    watermarks={"totals": NOON, "out": -(2**63)},
    held_by={"totals": "in/1"},
    last_failure="checkpoint 1 failed: expired: 'totals' was still writing",
    lag_measured={"in": NOON + 9 * SECOND},
    resting={"in": NOON + 900 * SECOND},
)

SIDES = (
    SideOutput(
        step="parse_json value", kind="bad", sinks=(SideOutputSink(uid="bad-out", to="files bad", is_direct=True),)
    ),
    SideOutput(step="totals", kind="late", sinks=()),
)


def leave_numbers(job: Path, *, generation: int = 0, seconds: int = 10, log_id: str = "log-1", **rest) -> StatusFile:
    """What the last run wrote, so many seconds past noon."""
    fields = {"report": REPORT, "side_outputs": SIDES} | rest
    hint = StatusFile(
        job="orders", log_id=log_id, generation=generation, began=NOON, written=NOON + seconds * SECOND, **fields
    )
    put(job, paths.REPORT, encode_hint(hint))
    return hint
