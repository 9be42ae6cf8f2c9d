"""Builders of checkpoint values for tests: every field has a default, so that a test names only what it is about."""

import itertools
from dataclasses import replace
from hashlib import sha256

from penstock.checkpoint.entries import Claim, Condemn, Entry, Manifest, Pin, Rewind, StepRecord, StepRole, Unpin
from penstock.checkpoint.entry_codec import encode
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log
from penstock.elements import CheckpointKind
from penstock.handles import Committable, FileRef, LayerRef, Position, StateHandle, TaskSnapshot

CLAIM = Claim(host="here", pid=7, started=1_700_000_000_000_000, version="0.1")


def file(path):
    return FileRef(path=path, length=3, sha256="ab" * 32)


def output(checkpoint, uid="out", *, name="part-0", kind="files/1", detail=None):
    path = f"staged/{uid}/0/{checkpoint}/{name}"
    return Committable(uid=uid, kind=kind, checkpoint=checkpoint, target="there", files=(file(path),), detail=detail)


def layer(name, generation=0, uid="totals"):
    path = f"state/{uid}/{generation}/{name}/part-0.parquet"
    return LayerRef(name=name, level=0, rows=3, files=(file(path),))


def keyed(*layers, task="totals", kind="window/1", schema="n LONG", detail=None):
    return TaskSnapshot(task=task, state=StateHandle(kind=kind, schema=schema, layers=layers, detail=detail))


def read_to(offset, task="in"):
    return TaskSnapshot(task=task, position=Position(kind="files/1", detail={"next": offset}))


def wrote(*items, task="out"):
    return TaskSnapshot(task=task, watermarks=(5,), committables=items)


SOURCE = StepRecord(uid="in", role=StepRole.SOURCE, kind="files/1", schema="v LONG")
STEP = StepRecord(uid="totals", role=StepRole.STEP, kind="window/1", schema="n LONG")
SINK = StepRecord(uid="out", role=StepRole.SINK)
STEPS = (SOURCE, STEP, SINK)


def manifest(checkpoint, parent=None, *, tasks=None, steps=STEPS, kind=CheckpointKind.PERIODIC, **rest):
    if tasks is None:
        tasks = (read_to(checkpoint), keyed(layer(f"layer-{checkpoint}")), wrote())
    return Manifest(
        checkpoint=checkpoint, kind=kind, parent=parent, triggered=1, completed=2, steps=steps, tasks=tasks, **rest
    )


def rewind(to, left=None, **rest):
    return Rewind(to=to, left=left, at=3, **rest)


def pin(name, checkpoint, **rest):
    return Pin(name=name, checkpoint=checkpoint, at=4, **rest)


def unpin(name, **rest):
    return Unpin(name=name, at=4, **rest)


def condemn(*checkpoints, files=(), **rest):
    return Condemn(checkpoints=checkpoints, files=tuple(files), at=5, **rest)


def entries(*bodies, first=0):
    """Entries as their owners would have written them: each claim begins a generation."""
    written, generation, previous = [], first, ""
    for number, body in enumerate(bodies, start=first):
        if isinstance(body, Claim):
            generation = number
        entry = Entry(
            number=number,
            log_id="log-1",
            job="orders",
            generation=generation,
            token=f"token-{generation}",
            previous=previous,
            body=body,
        )
        previous = sha256(encode(entry)).hexdigest()
        written.append(entry)
    return tuple(written)


def history(*bodies, first=0):
    found = entries(*bodies, first=first)
    return History(entries=found, tail=found[-1].number, tail_hash=sha256(encode(found[-1])).hexdigest())


class Pauses:
    """Counts waits, and does something at one of them."""

    def __init__(self, *acts):
        self.seconds = []
        self._acts = iter(acts)

    def __call__(self, seconds):
        self.seconds.append(seconds)
        next(self._acts, lambda: None)()


def log_on(filesystem, *acts, job="orders", ids="id"):
    counter = itertools.count()
    pause = Pauses(*acts)
    log = Log(filesystem, job=job, new_id=lambda: f"{ids}-{next(counter)}", pause=pause)
    return log, pause


def with_open(body, *items):
    return replace(body, open=items)
