"""Planted bugs: drains (C2), renamed steps (S6), checkpoints that come from a folder (R7)."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import export, recovery
from penstock.checkpoint.coordinator import StopProgress
from penstock.checkpoint.export import Copy, _Mover
from penstock.checkpoint.recovery import Renames
from penstock.elements import Barrier
from penstock.job import start
from penstock.runtime.source_task import Drain, SourceTask
from penstock.runtime.supervisor import Supervisor
from planted.bug import bug
from simulation import exports, process
from simulation.sinks import FakeSink

# --------------------------------------------------------------------------------------------------------------- drains


@bug("drain-never", "a drain is an ordinary stop, and is said to be done")
def _(put):
    put(StopProgress, "drain", lambda self: False)


@bug(
    "drain-again",
    "a drain is forgotten once its final checkpoint has failed: others say that the sources have ended",
    core="core/test_scenarios_savepoint_stop.py",  # the simulation needs some 400 stories
)
def _(put):
    def drain(self):
        wanted = any(stop.drain for stop in self._stops) and not hasattr(self, "drained_once")
        self.drained_once = True
        return wanted

    put(StopProgress, "drain", drain)


@bug("drain-order", "the barrier leaves before the end of all reading")
def _(put):
    def inject(self, effect):
        self._notify_sources(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)
        if effect.drain:
            self._notify_sources(Drain(), effect.sources)

    put(Supervisor, "_inject", inject)


@bug("drain-first", "only the first source is drained")
def _(put):
    def inject(self, effect):
        if effect.drain:
            self._notify_sources(Drain(), effect.sources[:1])
        self._notify_sources(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)

    put(Supervisor, "_inject", inject)


@bug("drain-reads-on", "a source that was drained is read on by the next start", core="core/test_source_task.py")
def _(put):
    put(SourceTask, "_refuse_after_end", lambda self: None)


@bug("drain-unsaid", "the checkpoint does not say that a source was drained")
def _(put):
    real = SourceTask._barrier

    def barrier(self, mail, checkpoint, kind):
        before, self._has_ended = self._has_ended, False
        try:
            real(self, mail, checkpoint, kind)
        finally:
            self._has_ended = before

    put(SourceTask, "_barrier", barrier)


# -------------------------------------------------------------------------------------------------------------- renames


@bug("rename-state", "a step that has another uid begins empty")
def _(put):
    real = recovery.match_steps

    def match(target, steps, **rest):
        return real(target, steps, **{**rest, "rename": {}, "allow_non_restored_state": True})

    put(recovery, "match_steps", match)


@bug("rename-positions", "a rename is done for the steps that keep state, and not for sources")
def _(put):
    real = Renames._uid
    put(Renames, "_uid", lambda self, uid: uid if uid.startswith("source") else real(self, uid))


@bug("rename-again", "a rename that was done is refused when the job begins again")
def _(put):
    real = recovery._not_done

    def to_do(target, steps, rename):
        recorded = {step.uid for step in target.steps} if target else set()
        for old in rename:
            if old not in recorded:
                msg = f"no step {old}"
                raise process.StateIncompatible(msg)
        return real(target, steps, rename)

    put(recovery, "_not_done", to_do)


@bug("S6-renamed", "what a sink has open is published under the uid that the sink has now")
def _(put):
    real = process.decide_recovery

    def decide(history, steps, **rest):
        found = real(history, steps, **rest)

        def now(item):
            new = rest.get("rename", {}).get(item.uid, item.uid)
            return replace(item, uid=new, target=item.target.replace(item.uid, new))

        return replace(found, commit=tuple(now(item) for item in found.commit))

    put(process, "decide_recovery", decide)


@bug("rename-staged", "what a sink has staged under an older uid is never condemned")
def _(put):
    real = FakeSink.stages_in

    def stages_in(self, log_id, uid):
        return tuple(f"{folder}/{uid}" for folder in real(self, log_id, uid))

    put(FakeSink, "stages_in", stages_in)


# -------------------------------------------------------------------------------------------------------------- imports


@bug("R7", "an export holds what its checkpoint had open, and whoever begins with it publishes that")
def _(put):
    real = exports.make_export

    def take_out(history, checkpoint, **rest):
        made = real(history, checkpoint, **rest)
        return replace(made, manifest=replace(made.manifest, open=history.restorable[checkpoint].open))

    put(exports, "make_export", take_out)


@bug("R2-import", "what is open is left when a checkpoint comes from a folder")
def _(put):
    real = process.execute_recovery

    def carry_out(found, **rest):
        real(replace(found, commit=()) if found.bring is not None else found, **rest)

    put(process, "execute_recovery", carry_out)


class _Log:
    """A claimed log in which an entry is written in another way."""

    def __init__(self, log, append):
        self._log = log
        self.append = append

    def __getattr__(self, name):
        return getattr(self._log, name)


@bug("import-order", "the entry is written before the files are copied")
def _(put):
    real = export.execute_import

    def bring_in(bring, *, log, **rest):
        if not bring.is_brought:
            log.append(bring.manifest)
        real(bring, log=_Log(log, lambda body: None), **rest)

    put(recovery, "execute_import", bring_in)


@bug(
    "import-release",
    "a folder that is taken over is emptied before the entry is written",
    core="core/test_import.py",
)
def _(put):
    real = export.execute_import

    def bring_in(bring, *, log, folders, **rest):
        def append(body):
            for file in bring.export.files if bring.claims else ():
                folders(bring.folder).delete(file.path)
            return log.append(body)

        real(bring, log=_Log(log, append), folders=folders, **rest)

    put(recovery, "execute_import", bring_in)


@bug("import-claim", "a folder that another log has taken over is brought in", core="core/test_import.py")
def _(put):
    put(export, "refuse_claimed", lambda claimed, folder, log_id: None)


@bug("import-twice", "a start that crashed right after the entry brings the checkpoint once more")
def _(put):
    put(start, "resume_import", lambda export, history, **rest: None)


@bug("import-names", "files keep the names that they had in the first log")
def _(put):
    def file(self, folder, before, file):
        self.copies[file.path] = Copy(source=file, path=file.path)
        return file

    put(_Mover, "_file", file)


@bug("import-marks", "what a source has told of event time does not come with the checkpoint")
def _(put):
    real = _Mover.task

    def task(self, snapshot):
        found = real(self, snapshot)
        return replace(found, watermarks=()) if found.position is not None else found

    put(_Mover, "task", task)


@bug("import-latest", "the job begins with its own newest checkpoint, and the folder's is only written down")
def _(put):
    real = process.decide_recovery

    def decide(history, steps, *, bring=None, **rest):
        found = real(history, steps, bring=bring, **rest)
        own = real(history, steps, **rest) if bring is not None and history.restore_point is not None else found
        return replace(found, snapshots=own.snapshots)

    put(process, "decide_recovery", decide)
