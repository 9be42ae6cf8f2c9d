"""Output of a checkpoint that could not be made durable must not be passed by a manifest that lacks it (rule S2)."""

from dataclasses import dataclass, field

import pytest

from penstock.errors import CheckpointAborted, KeptOutputLost, PenstockError, StorageFailed
from penstock.handles import CheckpointId, Committable
from penstock.runtime.task_logic import SinkLogic


@dataclass
class PuttingBack:
    """As the files sink: what cannot be made durable goes into the next epoch."""

    rows: list[str] = field(default_factory=list)
    refusals: int = 0
    error: type[PenstockError] = StorageFailed

    def prepare(self, checkpoint: CheckpointId) -> "Epoch":
        rows, self.rows = self.rows, []
        return Epoch(self, checkpoint, rows)


@dataclass
class Epoch:
    writer: PuttingBack
    checkpoint: CheckpointId
    rows: list[str]

    def materialise(self) -> tuple[Committable, ...]:
        if self.writer.refusals:
            self.writer.refusals -= 1
            self.writer.rows[:0] = self.rows
            msg = "disk full"
            raise self.writer.error(msg)
        item = Committable(
            uid="s", kind="k/1", checkpoint=self.checkpoint, target="t", files=(), detail=list(self.rows)
        )
        return (item,) if self.rows else ()


def test_S2_a_refused_epoch_goes_into_the_next_as_long_as_that_is_open() -> None:
    writer = PuttingBack(["a"], refusals=1)
    work = SinkLogic("s", writer)  # type: ignore[arg-type]
    first = work.snapshot(CheckpointId(1))
    with pytest.raises(StorageFailed):
        first(())
    writer.rows.append("b")
    assert [item.detail for item in work.snapshot(CheckpointId(2))(()).committables] == [["a", "b"]]


def test_S2_a_refused_epoch_that_a_later_one_has_overtaken_ends_the_attempt() -> None:
    writer = PuttingBack(["a"], refusals=1)
    work = SinkLogic("s", writer)  # type: ignore[arg-type]
    first = work.snapshot(CheckpointId(1))
    writer.rows.append("b")
    work.snapshot(CheckpointId(2))  # its manifest would pass "a", which only the epoch after it will hold
    with pytest.raises(PenstockError, match="begins again from its checkpoint") as told:
        first(())
    assert not isinstance(told.value, StorageFailed | CheckpointAborted)  # those are tolerated
    assert told.value.retry


def test_a_lost_block_is_not_counted_whether_or_not_a_later_epoch_was_closed() -> None:
    writer = PuttingBack(["a"], refusals=1, error=KeptOutputLost)
    work = SinkLogic("s", writer)  # type: ignore[arg-type]
    first = work.snapshot(CheckpointId(1))
    work.snapshot(CheckpointId(2))
    with pytest.raises(KeptOutputLost) as told:
        first(())
    assert not told.value.is_counted
