"""Planted bugs: dead letters, and replays of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.admin import dead_letter_replay, dead_letters
from penstock.checkpoint import export, gc, history, log, paths
from penstock.checkpoint.history import Timeline
from penstock.dead_letters import letters
from penstock.dead_letters import replay as letters_replay
from penstock.dead_letters import store as letters_store
from penstock.dead_letters.replay import ReplayingReader
from penstock.filesystem import base
from penstock.job import wiring
from planted.bug import bug
from simulation import letter_tools
from simulation.letters import FakeLetters


@bug("letters-early", "letters are seen before the checkpoint that they belong to is in the log")
def _(put):
    from penstock.connectors.files.committer import FilesCommitter
    from simulation.letters import LettersWriter

    real = LettersWriter.materialise

    def materialise(self, checkpoint, epoch):
        found = real(self, checkpoint, epoch)
        for item in found:
            FilesCommitter(self._sink.world.disk).commit(item)
        return found

    put(LettersWriter, "materialise", materialise)


@bug("letters-undone", "letters of a time that a rewind has undone are listed")
def _(put):
    real = history.timeline
    put(dead_letters, "timeline", lambda history, at: replace(real(history, at), undone=(), known=()))


@bug("letters-swept", "the collector takes published letters for leftovers")
def _(put):
    real, real_ours = gc.orphans_of, paths.is_ours
    put(FakeLetters, "stages_in", lambda self, log_id, uid: (self.at,))

    def orphans_of(read, own, files):
        found = sorted(files)
        return (*real(read, own, found), *(path for path in found if is_letters(path)))

    def is_letters(path):
        return path.startswith("/job/deadletters/") and path.endswith(".parquet")

    put(log, "orphans_of", orphans_of)
    put(paths, "is_ours", lambda path: is_letters(path) or real_ours(path))


@bug("replay-unmarked", "which replays were read is not in the position")
def _(put):
    put(letters_replay, "with_replays", lambda position, read: position)


@bug("replay-behind", "the position is one replay behind what was read")
def _(put):
    real = ReplayingReader.position

    def position(self):
        before, self._read = self._read, {uid: max(0, number - 1) for uid, number in self._read.items()}
        try:
            return real(self)
        finally:
            self._read = before

    put(ReplayingReader, "position", position)


@bug("replay-newest", "the newest replay is read, and those before it are not")
def _(put):
    def following(self, uid):
        newest = max(letters_store.replay_numbers(self._inbox.filesystem, uid), default=0)
        return letters_store.read_replay(self._inbox.filesystem, uid, newest) if newest > self._read[uid] else None

    put(ReplayingReader, "_following", following)


@bug("replay-undone", "letters of a time that a rewind has undone are read again, as are their rows")
def _(put):
    real = letters.replay_inbox

    def letterbox(graph, source, filesystem, counts, frame, **rest):
        return real(graph, source, filesystem, lambda checkpoint: True, frame, **rest)

    put(wiring, "replay_inbox", letterbox)


@bug("replay-again", "a replay names letters that an earlier one has named")
def _(put):
    real = letter_tools.replay
    put(letter_tools, "replay", lambda *given, again, **named: real(*given, again=True, **named))


@bug("replay-overwritten", "of two commands at once the second writes over the replay of the first")
def _(put):
    def create(job: Any, made: Any) -> bool:
        path = letters_store.replay_path(made.uid, made.number)
        job.filesystem.list(path)  # somebody else may go first
        job.filesystem.delete(path)
        return job.filesystem.create(path, letters_store.encode_replay(made)) is base.Created.CREATED

    put(dead_letter_replay, "_create", create)


@bug(
    "replay-imported", "a checkpoint of another log says that replays of this one were read", core="core/test_import.py"
)
def _(put):
    real = export._Mover.__init__
    put(export._Mover, "__init__", lambda self, generation, **_: real(self, generation, knows_replays=True))


@bug("drop-needed", "letters are dropped that a replay names and the job has yet to read")
def _(put):
    real = letter_tools.plan_drop

    def plan_drop(history, place, before):
        found = real(history, place, before)
        return replace(found, files=(*found.files, *found.kept), kept=())

    put(letter_tools, "plan_drop", plan_drop)


@bug("drop-newest", "letters are dropped that only an older checkpoint has yet to read")
def _(put):
    real = dead_letter_replay.replays_read

    def read_at(manifest, uid):
        return max(read_at.most, real(manifest, uid))

    def plan_drop(history, place, before):
        read_at.most = place.read
        return real_plan(history, place, before)

    read_at.most = 0
    real_plan = letter_tools.plan_drop
    put(dead_letter_replay, "replays_read", read_at)
    put(letter_tools, "plan_drop", plan_drop)


@bug("undone-forgotten", "a checkpoint does not say what is not of its timeline", core="core/test_dead_letters.py")
def _(put):
    put(gc, "abandoned_ids", lambda manifest, history: ())


@bug("undone-aborted", "output of an aborted checkpoint counts as of no timeline")
def _(put):
    real = Timeline.has
    put(Timeline, "has", lambda self, at: real(self, at) and (at in self.mine or at > max(self.known, default=-1)))


@bug("R8-letters", "letters of a checkpoint that was gone past count", core="core/test_dead_letters.py")
def _(put):
    put(history, "_ids_skipped", lambda history: ())
