"""Hands mail to tasks and wakes them. Decides nothing."""

from __future__ import annotations

from penstock.elements import Barrier, CancelBarrier
from penstock.runtime.roles import Wiring
from penstock.runtime.source_task import Finish, SourceTask
from penstock.runtime.task_protocols import Completed


class Mail:
    """The letter boxes of one attempt's tasks. What is posted is read between two elements."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring

    def to_sources(self, mail: Barrier | CancelBarrier | Finish, sources: tuple[str, ...]) -> None:
        """For these sources, which pass it on."""
        for id in sources:
            task = self._wiring.tasks[id]
            if isinstance(task, SourceTask):
                task.post(mail)
                self._wiring.threads[id].wake()

    def to_all(self, mail: Completed) -> None:
        """For every task."""
        for id, task in self._wiring.tasks.items():
            task.post(mail)
            self._wiring.threads[id].wake()
