"""What a source's task gets between two batches, besides what goes on to others. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.elements import Barrier, CancelBarrier
from penstock.runtime.task_protocols import Completed


@dataclass(frozen=True, slots=True)
class Finish:
    """Mail: the job ends in order; tell everybody downstream."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Mail: there is nothing more to read, ever; the barrier of the final checkpoint comes next."""


SourceMail: TypeAlias = Barrier | CancelBarrier | Completed | Drain | Finish
