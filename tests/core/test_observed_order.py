"""What observers see of one batch, and of the files of checkpoints, comes in the order in which it is true."""

import pytest

from core.attempt_kit import Attempt
from core.runtime_fakes import Clock, NotingShell
from penstock.elements import Batch
from penstock.errors import StorageFailed
from penstock.facts import BatchDone, BatchRead, CheckpointFailed, Published
from penstock.handles import Position
from penstock.interfaces.source import PlannedBatch, ReadLimit
from penstock.runtime.channels import Channel, OutputPath, TaskOutput
from penstock.runtime.source_task import SourceTask
from penstock.testing.filesystem import MemoryFileSystem


class One:
    """Gives one batch a poll, which takes its time."""

    def __init__(self, clock):
        self._clock = clock

    def poll(self, **_):
        self._clock.at += 3_000
        return PlannedBatch(plan=["a"], rows=1)

    def frame(self, plan):
        return plan

    def position(self):
        return Position(kind="one/1", detail=0)


class Impatient(Channel):
    """Its receiver is through with a batch before the sender's ``put`` has returned, as a fast thread may be."""

    def __init__(self, shell, task):
        super().__init__(capacity=100)
        self._shell, self._task = shell, task

    def put(self, element):
        super().put(element)
        if isinstance(element, Batch):
            self._shell.report(BatchDone(task=self._task, sequence=element.sequence, rows=1, duration_ms=0.0))


@pytest.mark.mission("S31")
def test_a_batch_is_told_as_read_before_anybody_can_be_through_with_it_and_once_for_all_its_readers():
    shell, clock, rewritten = NotingShell(), Clock(), []

    def rewrite(batch):
        rewritten.append(len(shell.facts))
        clock.at += 2_000
        return batch

    branches = tuple(OutputPath(rewrite=rewrite, channel=Impatient(shell, name)) for name in ("left", "right"))
    output = TaskOutput({"out": OutputPath(rewrite=rewrite, branches=branches)}, keep=lambda batch, readers: batch)
    source = SourceTask("in", One(clock), output, limits=ReadLimit, shell=shell, clock=clock)
    for _ in range(2):
        source.step()
    told = [(type(fact), fact.task, fact.sequence) for fact in shell.facts]
    assert told == [
        *((BatchRead, "in", 1), (BatchDone, "left", 1), (BatchDone, "right", 1)),
        *((BatchRead, "in", 2), (BatchDone, "left", 2), (BatchDone, "right", 2)),
    ]
    assert rewritten == [0, 0, 0, 3, 3, 3]
    assert (shell.facts[0].poll_ms, shell.facts[0].plan_ms) == (3.0, 6.0), "all rewriting, and only what was built"


@pytest.mark.mission("S31")
def test_each_batch_is_read_before_it_is_done_and_done_before_it_is_published():
    attempt = Attempt(MemoryFileSystem(), total=3, ends=True).settle()
    steps = [fact for fact in attempt.facts if isinstance(fact, BatchRead | BatchDone | Published)]
    assert [type(fact) for fact in steps] == [BatchRead, BatchDone] * 3 + [Published]
    assert [fact.sequence for fact in steps[:-1]] == [1, 1, 2, 2, 3, 3]


@pytest.mark.mission("S27")
def test_what_an_older_checkpoint_needed_is_deleted_only_when_the_newer_is_in_the_log():
    filesystem = MemoryFileSystem()
    attempt = Attempt(filesystem, total=1).settle()
    attempt.workers.held.add("clean-up")
    attempt.ask("r1")
    leftover = f"{attempt.staging}/0/9/part-0"
    filesystem.create(leftover, b"of a generation that is gone")
    again = Attempt(filesystem)
    again.workers.held.add("clean-up")
    filesystem.fail("create", StorageFailed("disk full"), path="log/*")
    again.wiring.coordinator._failures._tolerated = 1
    again.settle().ask("r2")
    assert again.seen(CheckpointFailed)[0].reason == "manifest_failed"
    assert leftover in filesystem.files, "no manifest, no deletion"
    again.ask("r3")
    assert leftover in filesystem.files
    again.workers.held.clear()
    again.settle()
    assert leftover not in filesystem.files
    names = [(operation.name, operation.path) for operation in filesystem.operations]
    entry = max(place for place, (name, path) in enumerate(names) if name == "create" and path.startswith("log/"))
    assert names.index(("delete", leftover)) > entry
