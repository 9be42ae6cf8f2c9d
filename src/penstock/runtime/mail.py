"""Hands mail to tasks and wakes them. Decides nothing."""

from __future__ import annotations

from penstock.checkpoint.effects import InjectBarrier
from penstock.elements import Barrier
from penstock.runtime.roles import Wiring
from penstock.runtime.source_mail import Drain, SourceMail
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task_protocols import Completed


class Mail:
    """The letter boxes of one attempt's tasks. What is posted is read between two elements."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring

    def to_sources(self, mail: SourceMail, sources: tuple[str, ...]) -> None:
        """For these sources, which pass it on."""
        for id in sources:
            task = self._wiring.tasks[id]
            if isinstance(task, SourceTask):
                task.post(mail)
                self._wiring.threads[id].wake()

    def inject(self, effect: InjectBarrier) -> None:
        """The barrier, behind the end of all reading where the sources are drained."""
        if effect.drain:
            self.to_sources(Drain(), effect.sources)
        self.to_sources(Barrier(checkpoint=effect.checkpoint, kind=effect.kind), effect.sources)

    def to_all(self, mail: Completed) -> None:
        """For every task."""
        for id, task in self._wiring.tasks.items():
            task.post(mail)
            self._wiring.threads[id].wake()
