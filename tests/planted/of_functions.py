"""Planted bugs: functions of ``for_each_batch`` (S8)."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from penstock.connectors import for_each
from penstock.connectors.for_each import BatchWriter, ForEachCommitter, ForEachSink
from penstock.connectors.staging import StagedWriter, staged_frame
from penstock.handles import CommitOutcome
from penstock.job import decision
from planted.bug import bug

TEST = "spark/test_for_each.py"
"""The simulation has sinks of its own, and calls no function."""


@bug("S8", "a function is called with each batch as it comes", core=TEST)
def _(put):
    real = ForEachSink.writer
    put(
        ForEachSink,
        "writer",
        lambda self, context: BatchWriter(self.function, context) if self.when == "commit" else real(self, context),
    )


@bug("S8-early", "a function is called when its rows are staged, before the manifest", core=TEST)
def _(put):
    class Early(StagedWriter):
        def committables(self, checkpoint, epoch):
            found = super().committables(checkpoint, epoch)
            for item in found:
                frame = staged_frame(item, self.context.filesystem, self.context.spark)
                self.function(frame, item.checkpoint)
            return found

    real = ForEachSink.writer

    def writer(self, context):
        if self.when == "batch":
            return real(self, context)
        made = Early(context, kind=for_each.KIND, target=self.describe())
        made.function = self.function
        return made

    put(ForEachSink, "writer", writer)
    put(ForEachCommitter, "commit", lambda self, item: CommitOutcome.DONE)


@bug("S8-epoch", "a function that is called again gets another epoch", core=TEST)
def _(put):
    real, numbers = for_each._call, count(1)
    put(for_each, "_call", lambda function, frame, epoch, *more: real(function, frame, next(numbers), *more))


@bug("S8-marked", "an epoch counts as called before the function has returned", core=TEST)
def _(put):
    def commit(self, item):
        first = item.files[0]
        if not self._is_there(first.path):
            return CommitOutcome.ALREADY_DONE
        begun = f"{first.path.rpartition('/')[0]}/begun.parquet"
        self._filesystem.move(first.path, begun)
        renamed = replace(item, files=(replace(first, path=begun), *item.files[1:]))
        with self._context.jobs(item.uid):
            frame = staged_frame(renamed, self._filesystem, self._context.spark)
            for_each._call(self._function(item), frame, item.checkpoint, item.uid)
        self._context.failpoint("sink.for_each.called")
        self._filesystem.delete(begun)
        return CommitOutcome.DONE

    put(ForEachCommitter, "commit", commit)


@bug("S8-again", "an epoch is not marked as called: a commit that is repeated calls the function again", core=TEST)
def _(put):
    def commit(self, item):
        with self._context.jobs(item.uid):
            frame = staged_frame(item, self._filesystem, self._context.spark)
            for_each._call(self._function(item), frame, item.checkpoint, item.uid)
        self._context.failpoint("sink.for_each.called")
        return CommitOutcome.DONE

    put(ForEachCommitter, "commit", commit)


@bug("S8-restart", "a start does not call the functions whose rows wait in the log", core=TEST)
def _(put):
    real = decision.decide_recovery

    def decide(history, steps, **rest):
        found = real(history, steps, **rest)
        return replace(found, commit=tuple(item for item in found.commit if item.kind != for_each.KIND))

    put(decision, "decide_recovery", decide)
