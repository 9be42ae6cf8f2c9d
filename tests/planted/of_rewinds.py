"""Planted bugs: rewind (R), garbage (G), recovery."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import gc, history, log, paths, recovery
from penstock.checkpoint.entries import Manifest, Rewind
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, OwnedLog
from penstock.handles import CheckpointId
from planted.bug import bug
from simulation import process


@bug("R1", "a rewind is not an entry")
def _(put):
    real = process.execute_recovery
    put(process, "execute_recovery", lambda found, **rest: real(replace(found, rewind=None), **rest))


@bug("R2", "a rewind does not publish what is open first")
def _(put):
    real = process.execute_recovery

    def carry_out(found, **rest):
        real(replace(found, commit=()) if found.rewind is not None else found, **rest)

    put(process, "execute_recovery", carry_out)


@bug(
    "R3-forget",
    "discarded output is forgotten, not voided",
    core="core/test_recovery.py core/test_history.py core/test_gc.py",
)
def _(put):
    real = process.execute_recovery
    put(process, "execute_recovery", lambda found, **rest: real(replace(found, void=()), **rest))


@bug("R3-order", "void first, entry second")
def _(put):
    real = process.execute_recovery

    def carry_out(found, **rest):
        for item in found.void:
            rest["void"](item)
        real(found, **rest)

    put(process, "execute_recovery", carry_out)


@bug(
    "R3-above",
    "output at or below the target is discarded too",
    core="core/test_recovery.py core/test_history.py core/test_gc.py",
)
def _(put):
    real = recovery.plan_rewind

    def plan_rewind(read, to, *, discard_unpublished=False, **rest):
        found = real(read, to, **rest)
        return replace(found, discard=read.open_committables) if discard_unpublished else found

    put(recovery, "plan_rewind", plan_rewind)


@bug(
    "R3-condemn",
    "a discard does not condemn the discarded checkpoints",
    core="core/test_recovery.py core/test_history.py core/test_gc.py",
)
def _(put):
    put(recovery, "_condemned_by", lambda read, discard: ())


@bug("R4", "ids begin again after the restored checkpoint")
def _(put):
    def following(self):
        point = self.restore_point
        return CheckpointId(point.checkpoint + 1 if point else 0)

    put(History, "next_checkpoint", property(following))


@bug(
    "R5",
    "what is open is read from the restored manifest",
    core="core/test_history.py core/test_recovery.py",
    note="the second lock on a door that S5 and S7 keep shut, as in the model",
)
def _(put):
    put(History, "open_committables", property(lambda self: self.restore_point.open if self.restore_point else ()))


@bug(
    "R6",
    "condemnations count only on the timeline that is followed",
    core="core/test_recovery.py core/test_history.py core/test_gc.py",
)
def _(put):
    def condemned(self):
        line, point = set(), self.restore_point_unchecked()
        while point is not None:
            line.add(point.checkpoint)
            point = self.manifests.get(point.parent, (0, None))[1]
        found = set()
        for entry in self.entries:
            if isinstance(entry.body, Manifest) and entry.body.checkpoint in line:
                found.update(entry.body.condemned)
        return frozenset(found)

    def newest(self):
        for entry in reversed(self.entries):
            if isinstance(entry.body, Manifest):
                return entry.body
            if isinstance(entry.body, Rewind):
                return self.manifests.get(entry.body.to, (0, None))[1]
        return None

    History.restore_point_unchecked = newest
    put(History, "condemned", property(condemned))


@bug("R8", "ids do not jump over an entry that cannot be read", core="core/test_log.py core/test_history.py")
def _(put):
    put(history, "ID_JUMP", 0)


@bug("G1-staged", "staged output of what is open is not needed")
def _(put):
    put(gc, "needed_files", lambda read: frozenset().union(*(gc.layers_of(m) for m in read.restorable.values())))


@bug("G1-shared", "a layer goes with the first checkpoint that is condemned, though others share it")
def _(put):
    def needed(read):
        doomed = frozenset().union(*(gc.layers_of(m) for k, (_, m) in read.manifests.items() if k in read.condemned))
        kept = frozenset().union(*(gc.layers_of(m) for m in read.restorable.values()))
        return (kept - doomed) | gc.staged_of(read.open_committables) | gc.staged_of(read.to_void)

    put(gc, "needed_files", needed)


@bug("G1-newest", "only the newest checkpoint's layers are needed")
def _(put):
    def needed(read):
        newest = list(read.restorable.values())[-1:]
        kept = frozenset().union(*(gc.layers_of(m) for m in newest))
        return kept | gc.staged_of(read.open_committables) | gc.staged_of(read.to_void)

    put(gc, "needed_files", needed)


@bug("G2", "orphans of one's own generation are condemned too")
def _(put):
    def is_older(path, own):
        generation = paths.generation_of(path)
        return generation is not None and generation <= own

    put(gc, "_is_older", is_older)


@bug("G2-never", "orphans are never condemned")
def _(put):
    from penstock.checkpoint import log

    put(log, "orphans_of", lambda *_: ())


@bug("pins", "a pinned checkpoint is condemned like any other")
def _(put):
    put(History, "pinned", property(lambda self: frozenset()))


@bug("floor", "everything below the newest entry is trimmed")
def _(put):
    put(gc, "_floor", lambda read, done, *, at_least: read.tail)


@bug("trim-early", "entries are trimmed up to the newest, whatever the floor says")
def _(put):
    def trim(self):
        for number in log.numbers_in_log(self._filesystem):
            if number < self.history.tail - 1:
                self._filesystem.delete(paths.entry(number))
        return 0

    put(OwnedLog, "trim", trim)


@bug("guard", "the entry directly below the floor is trimmed with the rest", core="core/test_log.py")
def _(put):
    real = OwnedLog.trim

    def trim(self):
        done = real(self)
        self._refuse_if_fenced()
        self._filesystem.delete(paths.entry(self.history.floor - 1))
        return done

    put(OwnedLog, "trim", trim)


@bug("restore-newest", "the newest manifest is restored, whatever a rewind says")
def _(put):
    put(History, "restore_point", property(lambda self: next(reversed([m for _, m in self.manifests.values()]), None)))


@bug("recovery-no-commit", "a recovery does not publish what is open")
def _(put):
    real = process.execute_recovery
    put(process, "execute_recovery", lambda found, **rest: real(replace(found, commit=()), **rest))


@bug("S4", "the log's identity is the same in every log")
def _(put):
    real = Log._claim_entry
    put(
        Log,
        "_claim_entry",
        lambda self, read, claim: replace(real(self, read, claim), log_id=read.log_id or "same"),
    )
