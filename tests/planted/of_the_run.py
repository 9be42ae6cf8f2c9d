"""Planted bugs: sinks (S) and checkpoints (C)."""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint import recovery
from penstock.checkpoint.commits import CommitQueue
from penstock.checkpoint.coordinator import Coordinator, StopProgress
from penstock.connectors.epochs import OutputEpochs
from penstock.connectors.files.committer import FilesCommitter
from penstock.connectors.kafka import transactions
from penstock.connectors.kafka.identity import Verdict
from penstock.connectors.kafka.transactions import Producing, Publisher, Step
from penstock.handles import CommitOutcome
from penstock.runtime.source_task import SourceTask
from planted.bug import bug
from simulation import broker, process
from simulation.outside import EpochCommitter


@bug("S1", "a commit that must be retried is overtaken by the next")
def _(put):
    real = CommitQueue.record_outcome

    def record(self, returned):
        queue = self._queues.get((returned.uid, returned.shard))
        fails = returned.outcome in {CommitOutcome.RETRY, CommitOutcome.UNKNOWN}
        if fails and queue is not None and len(queue.items) > 1:
            queue.items.rotate(-1)
            return [self._commit(queue)]
        return real(self, returned)

    put(CommitQueue, "record_outcome", record)


@bug("S1-unknown", "a commit of unknown outcome is taken for done")
def _(put):
    real = CommitQueue.record_outcome

    def record(self, returned):
        done = CommitOutcome.DONE if returned.outcome is CommitOutcome.UNKNOWN else returned.outcome
        return real(self, replace(returned, outcome=done))

    put(CommitQueue, "record_outcome", record)


@bug("S2", "output prepared for an aborted checkpoint is dropped")
def _(put):
    real = Coordinator._abort

    def abort(self, *arguments):
        self._commits._carried = []
        return real(self, *arguments)

    put(Coordinator, "_abort", abort)


@bug("S2-late", "output of an acknowledgement that comes too late is dropped")
def _(put):
    real = Coordinator._acknowledge

    def acknowledge(self, event):
        if not self._acks.is_pending(event.checkpoint):
            event = replace(event, snapshot=replace(event.snapshot, committables=()))
        return real(self, event)

    put(Coordinator, "_acknowledge", acknowledge)


@bug("S9", "blocks are freed when their rows are in files, before the manifest that names these is in the log")
def _(put):
    real = OutputEpochs.durable

    def durable(self, checkpoint, epoch):
        real(self, checkpoint, epoch)
        self.completed(checkpoint)

    put(OutputEpochs, "durable", durable)


@bug(
    "S9-all", "a checkpoint in the log frees all blocks, also those of later output", core="core/test_output_epochs.py"
)
def _(put):
    real = OutputEpochs.completed

    def completed(self, checkpoint):
        self._kept.update(dict.fromkeys(self._kept, checkpoint))
        real(self, checkpoint)

    put(OutputEpochs, "completed", completed)


@bug("S9-aborted", "kept output that could not be made durable is dropped", core="core/test_output_epochs.py")
def _(put):
    put(OutputEpochs, "reopen", lambda self, epoch: None)


@bug("S3-broker", "the marker is read before fencing, and not again", core="core/test_kafka_transactions.py")
def _(put):
    def take(client, producing):
        marker = producing.do(Step.READ, client.marker)
        producing.do(Step.FENCE, client.fence)
        return marker

    put(Publisher, "_take", staticmethod(take))


@bug("S3-apart", "the marker is committed after the rows, in a transaction of its own")
def _(put):
    real = Producing.publish

    def publish(self, marker, records=(), failpoint=lambda _name: None):
        client = self._publisher.client
        self.do(Step.BEGIN, client.begin)
        self.do(Step.PRODUCE, lambda: client.produce(records))
        self.do(Step.COMMIT, client.commit)
        real(self, marker, (), failpoint)

    put(Producing, "publish", publish)


@bug("S3-again", "after an error the same producer goes on, and looks at nothing")
def _(put):
    put(Publisher, "close", lambda self: None)


@bug("S5", "output of which no marker says whether it was published is published")
def _(put):
    real = transactions.judge

    def judge(marker, *, log_id, checkpoint):
        found = real(marker, log_id=log_id, checkpoint=checkpoint)
        return Verdict.OPEN if found is Verdict.UNKNOWN else found

    put(transactions, "judge", judge)


@bug(
    "S5-doubt",
    "a marker that an operator's decision made tells of later output too",
    core="core/test_kafka_transactions.py",
)
def _(put):
    real = transactions.judge
    put(transactions, "judge", lambda marker, **what: real(marker and replace(marker, doubtful=False), **what))


@bug("S5-late", "a marker is made only with the first output")
def _(put):
    put(broker, "take_identity", lambda publisher, **_: None)


@bug(
    "S5-idle",
    "a checkpoint opens output although its marker expired while the job had none",
    core="core/test_kafka_transactions.py",
    blind=True,
)
def _(put):
    put(Publisher, "may_be_open", property(lambda self: True))


@bug("S3-table", "the table's epoch is checked before the commit, not by it")
def _(put):
    real = EpochCommitter._apply

    def apply(self, item, rows, *, void):
        self._is_done, before = (lambda _: False), self._is_done
        try:
            return real(self, item, rows, void=void)
        finally:
            self._is_done = before

    put(EpochCommitter, "_apply", apply)


@bug("S6", "output of a sink that the pipeline no longer has is left", core="core/test_recovery.py")
def _(put):
    real = recovery.decide_recovery

    def decide(history, steps, **rest):
        found = real(history, steps, **rest)
        uids = {step.uid for step in steps}
        return replace(found, commit=tuple(item for item in found.commit if item.uid in uids))

    put(recovery, "decide_recovery", decide)
    put(process, "decide_recovery", decide)


@bug("S7", "a staged file that is gone, with no final one, is an error")
def _(put):
    real = FilesCommitter._publish

    def publish(self, item, ref, final):
        if not self._is_there(ref.path) and self._filesystem.read(final) is None:
            msg = "neither staged nor final"
            raise process.InternalError(msg)
        return real(self, item, ref, final)

    def commit(self, item, moves):
        for ref, final in moves:
            publish(self, item, ref, final)
        return CommitOutcome.DONE

    put(FilesCommitter, "_publish", publish)
    put(
        FilesCommitter,
        "commit",
        lambda self, item: commit(self, item, [(r, item.detail["moves"][r.path]) for r in item.files]),
    )


@bug(
    "C1",
    "a checkpoint begins while another is pending",
    core="core/test_coordinator.py",
    note="there is one pending checkpoint: the older one is given up, its output carried on",
)
def _(put):
    def following(self, event):
        if self._writing or self._has_lost_task or self._stopping.final is not None:
            return []
        trigger, effects = self._triggers.next(event.at)
        return effects if trigger is None else [*effects, *self._trigger(event, trigger)]

    put(Coordinator, "_trigger_next", following)


@bug("C1-writing", "a checkpoint begins while the manifest of another is on its way")
def _(put):
    def following(self, event):
        if self._acks.pending or self._has_lost_task or self._stopping.final is not None:
            return []
        trigger, effects = self._triggers.next(event.at)
        return effects if trigger is None else [*effects, *self._trigger(event, trigger)]

    put(Coordinator, "_trigger_next", following)


@bug("C2", "'stopped' is written while something is open")
def _(put):
    real = StopProgress.proceed
    put(StopProgress, "proceed", lambda self, still_open, wall: real(self, (), wall))


@bug("C3", "an entry does not hold the request that it fulfils", core="core/test_coordinator.py")
def _(put):
    real = Coordinator._complete

    def complete(self, event):
        return [
            replace(e, manifest=replace(e.manifest, fulfils=())) if hasattr(e, "manifest") else e
            for e in real(self, event)
        ]

    put(Coordinator, "_complete", complete)


@bug("C4", "sources do not wait for the first checkpoint", core="core/test_source_task.py")
def _(put):
    real = SourceTask.__init__
    put(SourceTask, "__init__", lambda self, *a, **k: real(self, *a, **{**k, "held": False}))
