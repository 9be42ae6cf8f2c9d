"""Planted bugs: what must be refused is not, or is refused though it should not be."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import export, log, recovery
from penstock.checkpoint.recovery import MatchedSteps
from penstock.job import start
from planted.bug import bug
from simulation import mistakes

RECOVERY = "core/test_recovery.py"


@bug("refusal-condemned", "a number of a condemned checkpoint is taken for one that can be restored", core=RECOVERY)
def _(put):
    real = start.resolve_checkpoint
    put(start, "resolve_checkpoint", lambda history, text: int(text) if text.isdecimal() else real(history, text))


@bug("refusal-nearest", "a name that was never given is taken for one that begins alike", core=RECOVERY)
def _(put):
    real = start.resolve_checkpoint

    def resolve(history, text):
        return real(history, next((name for name in history.pins if text.startswith(name)), text))

    put(start, "resolve_checkpoint", resolve)


@bug("refusal-name-moves", "a savepoint's name that is taken is given again", core=RECOVERY)
def _(put):
    put(mistakes, "name_conflict", lambda history, name: None)


@bug("refusal-merged", "two steps of a checkpoint become one, by a rename", core=RECOVERY)
def _(put):
    real = recovery._check_pair
    put(recovery, "_check_pair", lambda target, recorded, old, new: real(target, {old.uid: old}, old, new))


@bug("refusal-unlike", "a step restores the state of one of another kind", core=RECOVERY)
def _(put):
    put(recovery, "_refuse_unlike", lambda target, before, now: None)


@bug("refusal-left-over", "state that no step restores is left without a word", core=RECOVERY)
def _(put):
    real = recovery.match_steps

    def match(target, steps, **rest) -> MatchedSteps:
        return real(target, steps, **{**rest, "allow_non_restored_state": True})

    put(recovery, "match_steps", match)


@bug("refusal-dropped", "a start does not say which state it leaves unused", core=RECOVERY)
def _(put):
    real = recovery.match_steps
    put(recovery, "match_steps", lambda *args, **rest: replace(real(*args, **rest), dropped=()))


@bug("refusal-other-job", "a log with an entry of another job or log is read", core="core/test_log.py")
def _(put):
    put(log, "_check_coherent", lambda history, job: None)


@bug("refusal-gap", "a log without one of its entries is read as far as it goes", core="core/test_log.py")
def _(put):
    real = log._Reader.read

    def read(self):
        real(self)

    put(log._Reader, "read", read)


@bug("refusal-lost-log", "a directory whose log was lost gets a new one", core="core/test_log.py")
def _(put):
    put(log, "require_log", lambda history, filesystem: None)


@bug("refusal-outdated", "a start goes on although the log is not what its plan has seen", core="core/test_log.py")
def _(put):
    real = log.Log._refuse_strange
    put(log.Log, "_refuse_strange", lambda self, history, tail, mark: real(self, history, tail, None))


@bug("refusal-reaches-out", "an export may name files outside of its folder", core="core/test_import.py")
def _(put):
    put(export.paths, "is_ours", lambda path: True)
    put(export, "is_received_file", lambda path: True)


@bug(
    "refusal-unfinished",
    "a folder without export.json is said to hold none, whatever it has",
    core="core/test_import.py",
)
def _(put):
    def none(exported, folder):
        return export.UnknownName(f"There is no exported checkpoint in {folder}")

    put(export, "_no_export", none)
