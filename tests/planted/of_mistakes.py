"""Planted bugs: what must be refused is not, or is refused though it should not be."""

from __future__ import annotations

from dataclasses import replace

from penstock.admin import savepoints
from penstock.checkpoint import export, exported_blocks, log, received, recovery
from penstock.checkpoint.recovery import MatchedSteps
from penstock.control import server
from penstock.job import received_rows, start
from planted.bug import bug
from simulation import exports, mistakes

RECOVERY = "core/test_recovery.py"


@bug(
    "refusal-condemned",
    "a number of a condemned checkpoint is taken for one that can be restored",
    core="core/test_cli_plan.py",
)
def _(put):
    real = start.resolve_checkpoint
    put(start, "resolve_checkpoint", lambda history, text: int(text) if text.isdecimal() else real(history, text))


@bug("refusal-nearest", "a name that was never given is taken for one that begins alike", core="core/test_import.py")
def _(put):
    real = start.resolve_checkpoint

    def resolve(history, text):
        return real(history, next((name for name in history.pins if text.startswith(name)), text))

    put(start, "resolve_checkpoint", resolve)


@bug("refusal-name-moves", "a savepoint's name that is taken is given again")
def _(put):
    put(mistakes, "name_conflict", lambda history, name: None)


@bug(
    "refusal-name-asked",
    "a running job gives the name of a savepoint again",
    core="core/test_control_requests.py core/test_control_asking.py",
    blind=True,
)
def _(put):
    put(server, "name_conflict", lambda history, name: None)


@bug(
    "refusal-name-stopped",
    "a savepoint of a job that has stopped takes the name of another",
    core="core/test_cli_savepoint.py",
    blind=True,
)
def _(put):
    put(savepoints, "name_conflict", lambda history, name: None)


@bug("refusal-merged", "two steps of a checkpoint become one, by a rename", core="core/test_renaming.py")
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


@bug("refusal-reaches-out", "an export may name files outside of its folder", core="core/test_export.py")
def _(put):
    put(export.paths, "is_ours", lambda path: True)
    put(export, "is_received_file", lambda path: True)


@bug(
    "refusal-unfinished",
    "a folder without export.json is said to hold nothing",
    core="core/test_import.py",
)
def _(put):
    def none(exported, folder):
        return export.UnknownName(f"There is no exported checkpoint in {folder}")

    put(export, "_no_export", none)


# ---- exports of received rows, and folders that are spoilt -----------------------------------------------------------

IMPORT = "core/test_import.py"
BLOCKS = "core/test_exported_blocks.py"


@bug("received-half", "an export lacks the newest block that is not read", core=IMPORT, receives=True)
def _(put):
    real = exports.received_files

    def files(filesystem, manifest, log_id):
        found = list(real(filesystem, manifest, log_id))
        blocks = [path for path, _ in found if path.endswith(".block")]
        return [(path, data) for path, data in found if path not in blocks[-1:]]

    put(exports, "received_files", files)


@bug("received-keyless", "an export holds no keys of requests", core=BLOCKS, receives=True)
def _(put):
    put(exported_blocks, "every_key", lambda *args: [])


@bug("received-shuffled", "an import gives blocks other numbers, in another order", core=IMPORT, receives=True)
def _(put):
    real = export.move_blocks

    def move(snapshot, exported, **rest):
        moved = real(snapshot, exported, **rest)
        blocks = [path for _, path in moved.files if path.endswith(".block")]
        others = dict(zip(blocks, reversed(blocks), strict=True))
        return replace(moved, files=tuple((file, others.get(path, path)) for file, path in moved.files))

    put(export, "move_blocks", move)


@bug("received-left-over", "blocks of an import that came to nothing stay", core=BLOCKS, receives=True)
def _(put):
    put(export, "_remove_left_over", lambda filesystem, log, bring: None)


@bug("received-beside", "rows of another log are brought beside rows of this one", core=IMPORT, receives=True)
def _(put):
    put(received_rows, "refuse_own_rows", lambda filesystem, folders: None)


@bug("received-gap", "a block that is gone is passed over", core="core/test_received.py", receives=True)
def _(put):
    real = received.adopt

    def adopt(generations, start, *, place):
        try:
            return real(generations, start, place=place)
        except received.CheckpointUnreadable:
            found = {received.BlockId(each.generation, number) for each in generations for number in each.numbers}
            return tuple(sorted(block for block in found if start is None or block >= start))

    put(received, "adopt", adopt)


@bug("received-not-missed", "an export does not say that a block is gone", core=IMPORT, receives=True)
def _(put):
    put(exported_blocks, "missing", lambda found, low: ())


@bug("received-of-another-log", "a position in blocks of another log is taken for one here", core=IMPORT, receives=True)
def _(put):
    put(received.ReceivedBlocks, "_resumed", lambda self, resume: received.ReceivedPosition.decode(resume))


@bug("import-unchecked", "a file of a folder is brought as it is found", core=IMPORT)
def _(put):
    put(export, "read_checked", lambda filesystem, path, **_: filesystem.read(path) or b"")


@bug("import-slower", "a log that was slower goes on with the files of another", core=IMPORT)
def _(put):
    put(export, "_claim", lambda exported, bring, log, pause: None)
