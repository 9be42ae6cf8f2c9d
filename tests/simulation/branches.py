"""Worlds that branch off a story: what would become of it if somebody did this now. The story itself goes on untouched.

A branch is a copy, as the liveness oracle makes one, under the same judge. In it a job begins elsewhere with the rows
that a source was given, files rot, a folder is spoilt, or another log is faster. It draws from a chance of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.export import CLAIMED, EXPORT, Claimed, decode_export, encode_claimed, encode_export
from penstock.checkpoint.log import Log
from penstock.checkpoint.received import SEAL
from penstock.errors import CheckpointUnreadable, PenstockError, StateDirectoryRefused, StateIncompatible
from penstock.filesystem.base import Created
from penstock.interfaces.source import Until
from penstock.job.start import StartOptions, resolve_start
from penstock.runtime.lifecycle import NoRestart
from simulation.entries import layer_paths, positions
from simulation.exports import Folder, export
from simulation.harm import flipped
from simulation.mischief import Faults
from simulation.oracle import HORIZON, copy_of
from simulation.process import Driver
from simulation.receiving import row_of

if TYPE_CHECKING:
    from simulation.world import World

RATE = 0.03
MOST_TRIES = 5
"""Drivers that are started one after another in a branch, while faults are left."""


class Branches:
    """Of one story, by chance."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = Random(f"branches of {seed}")
        self._left = self._chance.choice((1, 2) if world.terms.shape.receives else (0, 1))

    def look(self) -> None:
        """A branch now and then; raises what its judge finds."""
        world = self._world
        if not self._left or self._chance.random() >= RATE or not self._is_fit:
            return
        self._left -= 1
        fresh = copy_of(world, self._chance, durable_only=False)
        acts: list[Callable[[World], None]] = [self._spoil, self._be_slower, self._swap_source]
        if world.terms.shape.receives:
            acts = [
                *[self._begin_elsewhere] * 3,
                *[self._rot] * 2,
                self._begin_beside,
                self._begin_without,
                self._spoil,
            ]
        try:
            self._chance.choice(acts)(fresh)
        except AssertionError as violation:
            world.ledger.violated("branch", str(violation))
        finally:
            fresh.end()
        if world.ledger.violation is not None:
            world.story += ["---- a branch of the story ----", *fresh.story[-60:]]
            raise world.ledger.violation

    @property
    def _is_fit(self) -> bool:
        world = self._world
        is_changed = world.is_strange or world.is_grown or world.pipeline.shape.without or world.expired
        is_over = world.ledger.facts.is_drained or world.importing is not None
        if not world.is_exact or is_changed or is_over:
            return False
        shape, manifests = world.pipeline.shape, world.ledger.facts.manifests
        needs_state = shape.keyed and not shape.receives
        return any(layer_paths(manifests[id]) or not needs_state for id in world.restorable_now())

    # ---- received rows ---------------------------------------------------------------------------------------------

    def _begin_elsewhere(self, fresh: World) -> None:
        """A job begins in an empty directory with a checkpoint and the rows that it has not read."""
        place, known = self._export(fresh)
        if place is None:
            return
        self._wipe(fresh)
        # Its client has forgotten some of what was acknowledged, and sends that once more under the same keys.
        fresh.outside.acknowledged[0] = self._chance.randint(0, known)
        crashes, unknown = self._chance.choice((0, 1, 1, 2)), self._chance.choice((0, 1))
        fresh.faults = Faults(crashes=crashes, unknown=unknown, crash_rate=0.006, fault_rate=0.03)
        brings = StartOptions(folder=place, claim=self._chance.random() < 0.5)
        self._run(fresh, brings)
        fresh.faults = Faults()
        self._world.count("branch elsewhere")
        self._judge_end(fresh)
        folders = {path.split("/")[1] for path in fresh.disk.files if path.startswith("wal/")}
        if sum("@" in folder for folder in folders) > 1:
            fresh.ledger.violated("import", f"{sorted(folders)}: an import that came to nothing has left blocks")
        self._begin_again(fresh, brings)

    def _begin_again(self, fresh: World, brings: StartOptions) -> None:
        """Somebody gives the folder once more, to this job and to another."""
        history = Log(fresh.disk, job="sim", new_id=str, pause=lambda _: None).read()
        imports = [m for _, m in history.manifests.values() if m.origin is not None]
        is_past = bool(imports) and history.restore_point is not imports[-1]
        for log, must in ((history, is_past and brings.claim), (type(history)(), brings.claim)):
            try:
                resolve_start(brings, log, job="sim", at=fresh.wall(), folders=fresh.folder)
            except StateDirectoryRefused as error:
                if not must:
                    fresh.ledger.violated("refusal", f"a folder that is free is refused: {error}")
                self._world.count("branch again refused")
            else:
                if must:
                    fresh.ledger.violated("refusal", "files that were taken over are taken over once more")

    def _begin_beside(self, fresh: World) -> None:
        """A job has been given rows of its own, and is to begin with those of another: refused, or they are read."""
        place, known = self._export(fresh)
        if place is None:
            return
        self._wipe(fresh)
        fresh.outside.acknowledged[0] = 0
        self._run(fresh)
        own = any(
            path.startswith(f"wal/{fresh.pipeline.shape.uid('source0')}/") and ".block" in path and data != SEAL
            for path, data in fresh.disk.files.items()
        )
        fresh.outside.acknowledged[0] = known
        fresh.refusals = (StateIncompatible,)
        driver = self._run(fresh, StartOptions(folder=place))
        if own != isinstance(driver.outcome, StateIncompatible):
            fresh.ledger.violated("import", f"rows of its own {own}, and the job ends with {driver.outcome!r}")
        self._world.count("branch beside")
        self._judge_end(fresh, is_swept=False)

    def _begin_without(self, fresh: World) -> None:
        """An older version has made the export, without the rows that are not read: no job begins with it."""
        place, _ = self._export(fresh)
        if place is None:
            return
        self._wipe(fresh)
        path, facts = f"{place}/{EXPORT}", fresh.ledger.facts
        before = fresh.disk.files[path]
        data = encode_export(replace(decode_export(before, path), received=None))
        fresh.disk.corrupt(path, data)
        facts.exports[sha256(data).hexdigest()] = facts.exports[sha256(before).hexdigest()]
        fresh.refusals, published = (StateIncompatible,), deepcopy(facts.published)
        driver = self._run(fresh, StartOptions(folder=place))
        if not isinstance(driver.outcome, StateIncompatible) or facts.published != published:
            fresh.ledger.violated("import", f"without the rows that are not read a job ends with {driver.outcome!r}")
        self._world.count("branch without")

    def _swap_source(self, fresh: World) -> None:
        """A source that is given its rows has the uid of one that reads them: refused, and the old one goes on."""
        shape = fresh.pipeline.shape
        target = Log(fresh.disk, job="sim", new_id=str, pause=lambda _: None).read().restore_point
        if target is None or 0 not in positions(target) or shape.letters:  # nothing is restored that could be refused
            return
        fresh.deploy(replace(shape, receives=True))
        fresh.refusals = (StateIncompatible,)
        driver = self._run(fresh)
        if not isinstance(driver.outcome, StateIncompatible):
            fresh.ledger.violated(
                "refusal", f"a source of another kind goes on, and the job ends with {driver.outcome!r}"
            )
        fresh.refusals = ()
        fresh.deploy(shape)
        self._run(fresh)
        self._world.count("branch swapped")
        self._judge_end(fresh)

    def _export(self, fresh: World) -> tuple[str | None, int]:
        """A folder with any checkpoint, and the number of rows that are known in it; judged."""
        id = self._chance.choice(fresh.restorable_now())
        gone, files = "", [path for path in fresh.disk.files if path.startswith("wal/")]
        later = [path for path in sorted(files) if _has_later(path, files)]
        if later and self._chance.random() < 0.4:
            gone = self._chance.choice(later)
            data = fresh.disk.files[gone]
            fresh.disk.remove(gone)
        try:
            is_made = export(fresh, id)
        except CheckpointUnreadable as error:
            if not gone or gone not in str(error):
                fresh.ledger.violated("export", f"'{gone}' is gone, and an export says {error}")
            self._world.count("branch export refused")
            is_made = export(fresh, id) if gone and not fresh.disk.corrupt(gone, data) else False
        if not is_made:
            return None, 0
        place = fresh.exported[-1]
        found = []
        for path, data in sorted(fresh.disk.files.items()):
            if path.startswith(f"{place}/wal/") and path.endswith(".block"):
                found.append(row_of(data, path))
        at = positions(fresh.ledger.facts.manifests[id])[0]
        known, given = at + len(found), fresh.outside.acknowledged.get(0, 0)
        if found != list(range(at, known)) or known < given:
            fresh.ledger.violated(
                "export", f"checkpoint {id} has read {at} rows, {given} are acknowledged, the export holds {found}"
            )
        return place, known

    def _rot(self, fresh: World) -> None:
        """A file of received rows or of keys rots, or a block is gone: a start says so, or does not need it."""
        chance = self._chance
        files = sorted(path for path, data in fresh.disk.files.items() if path.startswith("wal/") and data != SEAL)
        if not files:
            return
        merged = [path for path in files if paths.merged_ids(path) is not None]
        path = chance.choice(merged if merged and chance.random() < 0.5 else files[-6:])
        data = fresh.disk.files[path]
        has_later = _has_later(path, files)
        if has_later and chance.random() < 0.4:
            fresh.disk.remove(path)
        else:
            fresh.disk.corrupt(path, flipped(data, chance))
        fresh.tell(f"{path} rots")
        fresh.refusals = (CheckpointUnreadable,)
        # The client is away meanwhile. A block says by its end that it holds keys. If that rots, the block is refused
        # when it is read, and a request that is repeated before is taken for a new one.
        given, fresh.outside.acknowledged[0] = fresh.outside.acknowledged.get(0, 0), fresh.terms.shape.totals[0]
        driver = self._run(fresh, until=Until.CAUGHT_UP)
        fresh.outside.acknowledged[0] = given
        self._world.count(f"branch rot {type(driver.outcome).__name__}")
        if isinstance(driver.outcome, CheckpointUnreadable):
            places = [path] if paths.merged_ids(path) is None else [path, path.rpartition("/")[0]]
            if not any(place in str(driver.outcome) for place in places):
                fresh.ledger.violated("rot", f"{path} has rotted, and the job says: {driver.outcome}")
            fresh.disk.corrupt(path, data)
        fresh.refusals = ()
        self._run(fresh)
        self._judge_end(fresh)

    # ---- folders ---------------------------------------------------------------------------------------------------

    def _spoil(self, fresh: World) -> None:
        """A file of an exported folder rots, or is gone: nothing of it is brought, and the job goes on without it."""
        place = self._plain_export(fresh)
        if place is None:
            return
        if fresh.terms.shape.receives and self._chance.random() < 0.7:
            self._wipe(fresh)
        files = [path for path in sorted(fresh.disk.files) if path.startswith(f"{place}/") and EXPORT not in path]
        if fresh.ledger.facts.tail >= 0:  # only another log takes rows in, and keys
            files = [path for path in files if "/wal/" not in path]
        if not files:
            return
        path = self._chance.choice(files)
        if self._chance.random() < 0.3:
            fresh.disk.remove(path)
        else:
            fresh.disk.corrupt(path, flipped(fresh.disk.files[path], self._chance))
        self._refused(fresh, StartOptions(folder=place, claim=self._chance.random() < 0.5), CheckpointUnreadable)
        if any(each == f"{place}/{CLAIMED}" for each in fresh.disk.files):
            fresh.ledger.violated("import", "a folder that is not sound is taken over")
        self._world.count("branch spoilt")

    def _be_slower(self, fresh: World) -> None:
        """Two logs are to take one folder over, and another is faster."""
        place = self._plain_export(fresh)
        if place is None:
            return
        fresh.open_folder = lambda where: RivalFolder(fresh.disk, where)
        files = [path for path in fresh.disk.files if path.startswith(place)]
        self._refused(fresh, StartOptions(folder=place, claim=True), StateDirectoryRefused)
        if not all(fresh.disk.is_there(path) for path in files):
            fresh.ledger.violated("import", "the files of another log are deleted")
        self._world.count("branch slower")

    def _plain_export(self, fresh: World) -> str | None:
        known, manifests = fresh.restorable_now(), fresh.ledger.facts.manifests
        known = [id for id in known if layer_paths(manifests[id])] or known
        return fresh.exported[-1] if export(fresh, self._chance.choice(known)) else None

    def _refused(self, fresh: World, brings: StartOptions, kind: type[PenstockError]) -> None:
        """A start with a folder ends with this error and brings nothing; the next goes on without it to the end."""
        fresh.refusals, tail = (kind,), fresh.ledger.facts.tail
        before = fresh.ledger.facts.restore
        driver = self._run(fresh, brings)
        if not isinstance(driver.outcome, kind):
            fresh.ledger.violated("refusal", f"a start with a folder ends with {driver.outcome!r}")
        facts = fresh.ledger.facts
        new = [facts.entries[n].body for n in range(tail + 1, facts.tail + 1)]
        if any(isinstance(body, Manifest) for body in new) or facts.restore != before:
            fresh.ledger.violated("refusal", f"a start that was refused has written {new}")
        fresh.refusals = ()
        if facts.tail > 0 and tail >= 0:
            self._run(fresh)
            self._judge_end(fresh)

    # ---- how a branch goes on --------------------------------------------------------------------------------------

    def _wipe(self, fresh: World) -> None:
        fresh.disk.wipe()
        fresh.ledger.wiped()

    def _run(self, fresh: World, brings: StartOptions | None = None, until: Until = Until.STOPPED) -> Driver:
        """One driver after another, until one comes to an end that no repetition helps."""
        for _ in range(MOST_TRIES):
            wanted = brings if "begun with a folder" not in fresh.coverage else None
            name = fresh.name("branch")
            driver = Driver(fresh, name, strategy=NoRestart(), drops_state=True, brings=wanted, until=until)
            fresh.start(driver)
            while driver.outcome is None and driver in fresh.processes:
                if not fresh.step() or fresh.steps > HORIZON:
                    fresh.ledger.violated("liveness", f"{driver.name} does not come to an end")
                if fresh.ledger.violation is not None:
                    raise fresh.ledger.violation
            if driver.outcome is not None and not getattr(driver.outcome, "retry", False):
                break
        return driver

    def _judge_end(self, fresh: World, *, is_swept: bool = True) -> None:
        missing = fresh.ledger.missing()
        if missing:
            fresh.ledger.violated("liveness", f"in a branch of the story {missing[:4]}")
        elif is_swept and (litter := fresh.ledger.litter()):
            fresh.ledger.violated("litter", f"nobody needs {litter[:4]}, and nobody deletes it")
        if fresh.ledger.violation is not None:
            raise fresh.ledger.violation


def _has_later(path: str, files: Sequence[str]) -> bool:
    """Whether a file of one block is followed by one of the same generation, which shows that it was there."""
    block, folder = paths.block_id(path), path.rpartition("/")[0]
    others = [paths.block_id(each) for each in files if each.rpartition("/")[0] == folder]
    return block is not None and any(other is not None and other > block for other in others)


class RivalFolder(Folder):
    """A folder that another log takes over right before this one does."""

    def create(self, path: str, data: bytes) -> Created:
        if path == CLAIMED:
            rival = encode_claimed(Claimed(log_id="rival", job="another", at=self.disk._world.wall()))
            self.disk.corrupt(f"{self.place}/{path}", rival)
        return super().create(path, data)
