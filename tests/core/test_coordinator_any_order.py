"""The coordinator under events in orders that nobody thought of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.checkpoint_values import file, output, wrote
from core.coordinator_kit import DONE, SECOND, Job, barrier
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    Commit,
    EndJob,
    FailJob,
    InjectBarrier,
    ManifestFailed,
    ProgressMade,
    WakeAt,
    WriteManifest,
)
from penstock.handles import CommitOutcome, TaskSnapshot


class Model:
    """Plays supervisor, tasks and sink in an order that hypothesis chooses, and checks what must hold."""

    def __init__(self, data):
        self.data = data
        self.job = Job(
            interval=10 * SECOND,
            tolerable_failures=data.draw(st.sampled_from([0, 100])),
            skip_idle=data.draw(st.booleans()),
        )
        self.rows = 0
        self.pending = None
        self.writing = None
        self.owed = {"in": [], "out": []}  # barriers that tasks have not answered, in order
        self.prepared = []  # output the sink has not handed over
        self.logged = []
        self.committing = {}
        self.published = []
        self.timers = []
        self.over = False
        self.last = -1
        self.absorb(self.job.started)

    def absorb(self, effects):
        for effect in effects:
            match effect:
                case InjectBarrier(checkpoint=checkpoint):
                    assert self.pending is None
                    assert self.writing is None
                    assert checkpoint > self.last
                    self.last = self.pending = checkpoint
                    for task in self.owed.values():
                        task.append(checkpoint)
                    self.prepared.append(output(checkpoint, name=f"rows-{self.rows}"))
                case AbortCheckpoint(checkpoint=checkpoint):
                    assert checkpoint in {self.pending, self.writing and self.writing.checkpoint}
                    self.pending = self.writing = None
                case WriteManifest(manifest=manifest):
                    assert manifest.checkpoint == self.pending
                    self.pending, self.writing = None, manifest
                case Commit(item=item):
                    assert item in self.logged
                    assert item.uid not in self.committing
                    self.committing[item.uid] = item
                case WakeAt(timer=timer):
                    self.timers.append(timer)
                case EndJob() | FailJob():
                    self.over = True
                case _:
                    pass

    def answer(self, task):
        if not self.owed[task]:
            return
        checkpoint = self.owed[task].pop(0)
        items = [self.prepared.pop(0)] if task == "out" else []
        self.absorb(self.job.ack_sink(checkpoint, *items) if task == "out" else self.job.ack_source(checkpoint))

    def write(self):
        if self.writing is None:
            return
        manifest = self.writing
        if self.data.draw(st.booleans(), label="in the log"):
            new = [item for item in manifest.open if item not in self.logged]
            lost = [
                item for item in self.handed if item.checkpoint <= manifest.checkpoint and item not in self.logged + new
            ]
            assert lost == [], "S2: every row before the barrier is in this manifest or an older one"
            self.logged += new
            self.writing = None
            self.absorb(self.job.written(manifest.checkpoint))
        else:
            self.absorb(self.job.tell(ManifestFailed, checkpoint=manifest.checkpoint, definite=True, message="full"))

    @property
    def handed(self):
        return [output(checkpoint, name=f"rows-{self.rows}") for checkpoint in range(self.last + 1)]

    def commit(self):
        if not self.committing:
            return
        item = self.committing.pop("out")
        outcome = self.data.draw(st.sampled_from(CommitOutcome), label="outcome")
        if outcome in {DONE, CommitOutcome.ALREADY_DONE}:
            assert [*self.published, item] == self.logged[: len(self.published) + 1], "S1: in order, none skipped"
            self.published.append(item)
        self.absorb(self.job.returned(item.checkpoint, outcome))

    def fire(self):
        if self.timers:
            timer = self.timers.pop(self.data.draw(st.integers(0, len(self.timers) - 1), label="timer"))
            self.job.at += self.data.draw(st.integers(0, 20), label="seconds")
            self.absorb(self.job.fire(timer))

    def decline(self):
        if self.pending is not None:
            self.absorb(self.job.decline(self.pending, AbortReason.TASK_NOT_READY))

    def step(self):
        acts = [
            lambda: self.answer("in"),
            lambda: self.answer("out"),
            lambda: self.answer("out"),
            self.write,
            self.commit,
            self.fire,
            self.decline,
            lambda: self.absorb(self.job.request(name=self.data.draw(st.sampled_from([None, "save"])))),
            lambda: self.absorb(self.job.tell(ProgressMade)),
            lambda: self.absorb(self.job.stop()),
        ]
        self.data.draw(st.sampled_from(acts), label="act")()


@settings(deadline=None)
@given(st.data())
def test_in_any_order_of_events_nothing_is_lost_doubled_or_published_out_of_order(data):
    """C1, L3, S1, S2 over orders that nobody thought of."""
    model = Model(data)
    for _ in range(data.draw(st.integers(0, 40), label="steps")):
        if not model.over:
            model.step()


def test_values_of_the_vocabulary_are_frozen():
    with pytest.raises(AttributeError):
        barrier(0)[0].checkpoint = 1
    assert file("a") == file("a")
    assert isinstance(wrote(), TaskSnapshot)
