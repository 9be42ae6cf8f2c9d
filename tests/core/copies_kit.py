"""A job's directory made by hand whose layers have real files, and starts that recover as a driver does. No Spark."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from core.checkpoint_values import CLAIM, STEPS, entries, keyed, log_on, manifest, read_to, wrote
from penstock.checkpoint import paths
from penstock.checkpoint.entry_codec import encode
from penstock.checkpoint.recovery import decide_recovery, execute_recovery
from penstock.control.client import host_identity
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CommitOutcome, FileRef, LayerRef
from penstock.job.start import FROM_LATEST, parse_start_options, resolve_start

JOB = "orders"


def content(name):
    return f"rows of {name}".encode()


def layer(name, *, generation=0, uid="totals"):
    """A layer of two slices; ``write`` makes its files."""
    files = []
    for part in ("0000", "0001"):
        data = content(f"{name}/{part}")
        path = f"state/{uid}/{generation}/{name}/{part}/part-0.parquet"
        files.append(FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest()))
    return LayerRef(name=name, level=0, rows=3, files=tuple(files), detail={"slices": 2, "by": ["user"]})


def at(number, parent=None, *, layers=(), **rest):
    return manifest(number, parent, tasks=(read_to(number), keyed(*layers), wrote()), **rest)


def write(state, *bodies):
    """The log, and every file that its checkpoints name."""
    job = Path(state) / JOB
    gone = replace(CLAIM, host=host_identity(), pid=2**31 - 2)  # nobody needs to be asked
    for entry in entries(*[gone if body is CLAIM else body for body in bodies]):
        put(job / paths.entry(entry.number), encode(entry))
        for task in getattr(entry.body, "tasks", ()):
            for each in task.state.layers if task.state else ():
                for file in each.files:
                    name, part = file.path.split("/")[-3:-1]
                    put(job / file.path, content(f"{name}/{part}"))
    return Path(state)


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Start:
    """One start of the job: claims, decides, carries out. Its acts are those of a driver, with nothing behind them."""

    def __init__(self, state, restore_from=None, *, claim=False, fresh=False, discard_unpublished=False, steps=STEPS):
        self.filesystem = LocalFileSystem(Path(state) / JOB)
        self.published, self.voided, self.facts = [], [], []
        asked = parse_start_options(
            fresh=fresh, restore_from=restore_from, claim=claim, discard_unpublished=discard_unpublished
        )
        self.owned = log_on(self.filesystem, ids=f"id-{Path(state).name}")[0].claim(CLAIM, take_over=True)
        history = self.owned.history
        begins = resolve_start(asked or FROM_LATEST, history, job=JOB, at=9, generation=self.owned.generation)
        self.recovery = decide_recovery(history, steps, at=9, **begins)
        execute_recovery(
            self.recovery,
            log=self.owned,
            filesystem=self.filesystem,
            commit=self._commit,
            void=self._void,
            listener=self.facts.append,
            pause=lambda seconds: None,
        )

    def _commit(self, item):
        self.published.append(item.checkpoint)
        return CommitOutcome.DONE

    def _void(self, item):
        self.voided.append(item.checkpoint)
        return CommitOutcome.DONE

    @property
    def restored(self):
        """What a restore would read: positions and the content of every layer, checked as a restore checks it."""
        position = self.recovery.snapshots["in"].position.detail if "in" in self.recovery.snapshots else None
        state = self.recovery.snapshots["totals"].state if "totals" in self.recovery.snapshots else None
        found = []
        for each in state.layers if state else ():
            for file in each.files:
                data = self.filesystem.read(file.path)
                assert data is not None, file.path
                assert sha256(data).hexdigest() == file.sha256
                found.append((file.path.split("/")[-2], data.decode()))
        return position, found


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }
