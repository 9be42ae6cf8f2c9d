"""Which blocks of a sink stay until when (rule S9), and that their bytes are bounded."""

from dataclasses import dataclass, field

import pytest

from penstock.clock import MonotonicTime
from penstock.connectors.epochs import MAX_KEPT_BATCHES, MAX_KEPT_TIME, KeptBatch, OutputEpochs, StagedBatch
from penstock.handles import CheckpointId
from penstock.interfaces.sink import BlockBudget

FIRST, SECOND, THIRD = CheckpointId(1), CheckpointId(2), CheckpointId(3)


@dataclass
class Store:
    """Blocks, by name."""

    freed: list[str] = field(default_factory=list)

    def kept(self, name: str, *, size: int = 10, since: int = 0) -> KeptBatch:
        return KeptBatch(
            content=name, rows=1, bytes=size, since=MonotonicTime(since), free=lambda: self.freed.append(name)
        )


@pytest.fixture
def store() -> Store:
    return Store()


def test_S9_blocks_are_freed_when_their_checkpoint_is_in_the_log_and_not_before(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    epochs.add(store.kept("a"))
    epoch = epochs.close_epoch()
    epochs.add(store.kept("b"))
    epochs.completed(FIRST)  # of which this sink had nothing
    epochs.durable(SECOND, epoch)
    assert store.freed == []
    epochs.completed(SECOND)
    epochs.completed(SECOND)
    assert store.freed == ["a"]


def test_S9_what_an_aborted_checkpoint_made_durable_is_freed_with_the_next(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    epochs.add(store.kept("a"))
    epochs.durable(FIRST, epochs.close_epoch())  # and is aborted
    epochs.add(store.kept("b"))
    second = epochs.close_epoch()
    epochs.add(store.kept("c"))
    epochs.durable(SECOND, second)
    epochs.completed(SECOND)
    assert store.freed == ["a", "b"]


def test_S9_what_could_not_be_made_durable_comes_first_in_the_next_epoch_and_stays(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    a, staged, b = store.kept("a"), StagedBatch("1", 5), store.kept("b")
    epochs.add(a)
    epochs.add(staged)
    failed = epochs.close_epoch()
    epochs.add(b)
    epochs.reopen(failed)
    epochs.completed(SECOND)
    assert store.freed == []
    assert epochs.close_epoch() == [a, staged, b]


def test_S9_blocks_that_were_moved_to_files_stay_as_long_as_others(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    old = store.kept("old", since=1)
    epochs.add(old)
    assert not epochs.is_old(MonotonicTime(1 + MAX_KEPT_TIME))
    assert epochs.is_old(MonotonicTime(2 + MAX_KEPT_TIME))
    moved = StagedBatch("7", 1, (old,))
    epochs.replace(epochs.open_epoch(), [moved])
    assert not epochs.is_old(MonotonicTime(2 + MAX_KEPT_TIME))
    assert store.freed == []
    epochs.durable(THIRD, epochs.close_epoch())
    epochs.completed(THIRD)
    assert store.freed == ["old"]


def test_an_epoch_that_moves_to_files_while_an_earlier_one_fails_stays_behind_it(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    a, b, c = store.kept("a"), store.kept("b"), store.kept("c")
    epochs.add(a)
    first = epochs.close_epoch()
    epochs.add(b)
    epochs.add(c)
    being_moved = epochs.open_epoch()
    epochs.reopen(first)  # by a worker, meanwhile
    moved = StagedBatch("7", 2, (b, c))
    epochs.replace(being_moved, [moved])
    assert epochs.close_epoch() == [a, moved]


def test_the_bytes_of_a_sink_and_of_all_sinks_are_bounded_also_while_checkpoints_fail(store: Store) -> None:
    of_all = BlockBudget(100)
    one, other = OutputEpochs(BlockBudget(80, of_all)), OutputEpochs(BlockBudget(80, of_all))
    one.add(store.kept("a", size=60))
    assert one.has_room(20)
    assert not one.has_room(21)
    assert other.has_room(40)
    assert not other.has_room(41)
    one.durable(FIRST, one.close_epoch())  # in files, but no manifest names them yet
    other.add(store.kept("b", size=30))
    assert [one.has_room(11), one.has_room(10), of_all.used] == [False, True, 90]
    one.completed(FIRST)
    assert [one.has_room(70), of_all.used] == [True, 30]


def test_the_number_of_batches_in_blocks_is_bounded(store: Store) -> None:
    epochs = OutputEpochs(BlockBudget())
    for _ in range(MAX_KEPT_BATCHES):
        assert epochs.has_room(0)
        epochs.add(store.kept("small", size=0))
    assert not epochs.has_room(0)


def test_a_writer_that_is_closed_frees_all_once(store: Store) -> None:
    of_all = BlockBudget()
    epochs = OutputEpochs(BlockBudget(1_000, of_all))
    for name in ("open", "closed", "durable"):
        epochs.add(store.kept(name))
    epoch = epochs.close_epoch()
    epochs.durable(FIRST, epoch[2:])
    epochs.close()
    epochs.close()
    epochs.durable(SECOND, epoch[:1])  # a worker that was late
    epochs.completed(SECOND)
    assert sorted(store.freed) == ["closed", "durable", "open"]
    assert of_all.used == 0
