"""One attempt of a small job, stepped by hand: a real supervisor, log, coordinator and committer, no thread, no Spark.

A source of numbers, a sink of files, a file system in memory. What threads and workers would do waits until the test
lets it happen; whatever happens can be looked at in between.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

from core.attempt_parts import SECOND, TARGET, Bench, Files, Hand, Numbers
from core.checkpoint_values import CLAIM, SINK, SOURCE, log_on
from core.runtime_fakes import Clock, output_to
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import CheckpointRequested, RunStarted, StopRequested
from penstock.checkpoint.log import ManifestWriter
from penstock.checkpoint.policy import CheckpointConfig
from penstock.checkpoint.recovery import decide_recovery, execute_recovery
from penstock.clock import MAX_WATERMARK
from penstock.connectors.files.committer import FilesCommitter
from penstock.errors import PenstockError
from penstock.interfaces.source import ReadLimit
from penstock.job.failures import to_penstock_error
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.executors import AttemptParts
from penstock.runtime.inputs import Inputs
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask
from penstock.runtime.task_logic import SinkLogic


class Attempt:
    """Claims, recovers and begins. ``settle`` goes on until nothing moves; ``error`` is what ended it, if anything."""

    def __init__(self, filesystem, *, total=0, ends=False, begin=True, rewind=None, clock=None, **settings):
        self.filesystem, self.clock, self.story, self.facts, self.answers = filesystem, clock or Clock(), [], [], []
        self.error: PenstockError | None = None
        self._is_torn_down = False
        self.owned = log_on(filesystem)[0].claim(CLAIM, take_over=True)
        self.recovery = decide_recovery(self.owned.history, (SOURCE, SINK), at=1, **(rewind or {}))
        self.committer = FilesCommitter(filesystem)
        execute_recovery(
            self.recovery,
            log=self.owned,
            filesystem=filesystem,
            commit=self.committer.commit,
            void=self.committer.void,
            listener=self.facts.append,
            pause=lambda seconds: None,
        )
        self.supervisor = Supervisor(self.clock, self.facts.append)
        self.workers = Bench(self.supervisor, self.story)
        self.wiring = self._wired(total, ends, {"interval": None, **settings})
        if begin:
            self.supervisor.begin(self.wiring)

    def _wired(self, total, ends, settings):
        snapshot = self.recovery.snapshots.get("in")
        self.reader = Numbers(total, ends=ends, resume=snapshot.position if snapshot else None)
        self.staging = f"{TARGET}/.penstock/{self.owned.log_id}/out"
        self.writer = Files(self.filesystem, f"{self.staging}/{self.owned.generation}")
        self.threads = {id: Hand(id, self.supervisor, self.story) for id in ("in", "out")}
        channel, around = Channel(capacity=10), {"shell": self.supervisor, "clock": self.clock}
        source = SourceTask(
            "in",
            self.reader,
            output_to(channel),
            limits=ReadLimit,
            held=self.recovery.initial,
            has_ended=bool(snapshot and MAX_WATERMARK in snapshot.watermarks),
            **around,
        )
        inputs = Inputs([channel], [None], wake=lambda: None)
        end = TaskOutput({}, keep=lambda batch, readers: batch)
        return AttemptParts(
            coordinator=Coordinator(CheckpointConfig(**settings)),
            started=self._started,
            tasks={"in": source, "out": StepTask("out", inputs, end, SinkLogic("out", self.writer), **around)},
            threads=self.threads,
            workers=self.workers,
            manifest_writer=ManifestWriter(
                self.owned, self.filesystem, retained=3, leftovers=lambda: self.filesystem.list(self.staging)
            ),
            publish=self.committer.commit,
            explain=to_penstock_error,
            cancel=lambda: self.story.append("cancel jobs"),
            background=nullcontext,
            snapshot=nullcontext,
            answered=lambda answer: self.answers.append((answer.request, answer.outcome, answer.checkpoint)),
        )

    def _started(self, at):
        self.story.append("job started")
        return RunStarted(
            at=at,
            wall=self.clock.wall(),
            attempts={id: f"{id}@{self.owned.generation}" for id in ("in", "out")},
            sources=("in",),
            steps=(SOURCE, SINK),
            next_checkpoint=self.recovery.next_checkpoint,
            parent=self.recovery.restored,
            initial=self.recovery.initial,
            settled=bool(self.recovery.commit),
        )

    def settle(self):
        """Until nothing moves: events first, then tasks, then workers."""
        while not self._is_over and (self._turned() or self._stepped() or self.workers.work()):
            pass
        if self.supervisor.ended is not None and not self._is_torn_down:
            self.supervisor.finish()
            while self._stepped() or self._turned():
                pass
            self._tear_down()
        return self

    @property
    def _is_over(self):
        return self.error is not None or self.supervisor.ended is not None

    def _tear_down(self):
        self._is_torn_down = True
        self.supervisor.tear_down(self.wiring)

    def _turned(self):
        due = self.supervisor.next_turn
        if due is None or due > self.clock.at or self.error is not None:
            return False
        try:
            self.supervisor.turn()
        except PenstockError as error:
            self.error = error
            self._tear_down()
        return True

    def _stepped(self):
        return sum(thread.step() for thread in self.threads.values()) > 0

    def go_on(self, seconds):
        """Time passes."""
        self.clock.at += round(seconds * SECOND)
        return self.settle()

    def ask(self, request="r", name=None):
        at = {"at": self.clock.now(), "wall": self.clock.wall()}
        self.supervisor.request(CheckpointRequested(request=request, name=name, **at))
        return self.settle()

    def stop(self, request="s", **rest):
        at = {"at": self.clock.now(), "wall": self.clock.wall()}
        self.supervisor.request(StopRequested(request=request, **at, **rest))
        return self.settle()

    @property
    def published(self):
        """All numbers that readers of the target see, in the order of their files."""
        return numbers(self.filesystem, TARGET + "/part-")

    @property
    def staged(self):
        return [path for path in self.filesystem.files if path.startswith(self.staging) and "voided" not in path]

    def seen(self, kind):
        return [fact for fact in self.facts if isinstance(fact, kind)]


def numbers(filesystem, prefix):
    files = sorted((path for path in filesystem.files if path.startswith(prefix)), key=lambda path: (len(path), path))
    return [number for path in files for number in json.loads(filesystem.files[path])]
