"""The write-ahead log of receivers under crashes, zombies, lost answers, failed syncs and rewinds (rule G5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.checkpoint import received
from penstock.checkpoint.received import ReceivedBlocks
from penstock.errors import GenerationFenced, PenstockError, StorageFailed
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.handles import BlockId
from properties.received_kit import Act, Received, story

SEEDS = 60
LENGTH = 24
WEIGHTS = ({"crash": 2, "power fails": 2, "land": 2}, {"crash": 0.2, "power fails": 0.2, "land": 2, "start": 1})
"""How often an act is drawn: every other story is calm, so that it comes to several checkpoints."""
TELLING = ("start", "rewind", "clean", "power fails")
"""Acts after which something may be wrong that a later one hides."""


def walk(seed: int) -> tuple[list[Act], str | None]:
    """A random story, up to the first act after which something would be lost or repeated."""
    choose = random.Random(seed)
    world = Received(rows=5, starts=4, retained=choose.choice([1, 2, 3]), rewinds=1, faults=2)
    acts: list[Act] = []
    for _ in range(LENGTH):
        possible = list(world.acts())
        if not possible:
            break
        kinds = sorted({act[0] for act in possible})
        kind = choose.choices(kinds, [WEIGHTS[seed % 2].get(each, 8) for each in kinds])[0]
        act = choose.choice([each for each in possible if each[0] == kind])
        acts.append(act)
        world.do(act)
        if kind in TELLING and (wrong := world.judge()):
            return acts, wrong
    return acts, world.judge()


def search(most: int, **bounds: int) -> tuple[int, list[Act], str | None]:
    """Every story within bounds, shortest first: the number of worlds, and the first story that goes wrong."""
    first: list[Act] = []
    seen = {story(first, **bounds).key()}
    front = [first]
    while front:
        longer = []
        for acts in front:
            for act in story(acts, **bounds).acts():
                world = story([*acts, act], **bounds)
                if (key := world.key()) in seen:
                    continue
                if act[0] in TELLING and (wrong := world.judge()):
                    return len(seen), [*acts, act], wrong
                seen.add(key)
                if len(seen) >= most:
                    return len(seen), [], "not searched to the end"
                longer.append([*acts, act])
        front = longer
    return len(seen), [], None


def test_G5_no_seed_loses_or_repeats_an_acknowledged_row() -> None:
    for seed in range(SEEDS):
        acts, wrong = walk(seed)
        assert wrong is None, (seed, wrong, acts)


def test_G5_no_story_of_two_generations_loses_or_repeats_the_one_acknowledged_row() -> None:
    worlds, acts, wrong = search(60_000, rows=1, starts=2, retained=1, rewinds=0, faults=1)

    assert wrong is None, (acts, wrong)
    assert worlds > 200


@pytest.mark.slow
def test_G5_no_story_of_two_generations_and_two_rows_loses_or_repeats_one() -> None:
    worlds, acts, wrong = search(60_000, rows=2, starts=2, retained=1, rewinds=0, faults=1)

    assert wrong is None, (acts, wrong)
    assert worlds > 2_000


# ------------------------------------------------------------------------------------------------------ planted bugs


def not_checked(put: Callable[..., None]) -> None:
    """The log is not asked before rows are acknowledged. The seal is the second lock on the same door."""
    put(ReceivedBlocks, "check", lambda _self: None)


def unsealed(put: Callable[..., None]) -> None:
    """Nothing is sealed. The names of adopted blocks are not made durable either: that comes with the seal."""

    def seal(self: Any, generation: int, found: frozenset[BlockId], *, is_sealed: bool) -> object:
        numbers = sorted(block.number for block in found if block.generation == generation)
        return received.SealedGeneration(generation=generation, numbers=tuple(numbers), end=len(numbers))  # type: ignore[arg-type]

    put(ReceivedBlocks, "_seal", seal)


def seal_deleted_early(put: Callable[..., None]) -> None:
    not_checked(put)
    put(received, "removable", lambda found, low: tuple(sorted(b for b in found if low is not None and b < low)))


def folder_not_checked(put: Callable[..., None]) -> None:
    not_checked(put)

    def write(self: Any, data: bytes) -> BlockId:
        while True:
            block = BlockId(self._log.generation, self._next)
            self._next += 1
            with suppress(UnknownOutcome):
                if self._filesystem.create(self.place(block), data) is Created.CREATED:
                    return block

    put(ReceivedBlocks, "write", write)


def generation_without_folder_not_sealed(put: Callable[..., None]) -> None:
    not_checked(put)
    put(received, "generations_to_seal", lambda _claimed, found, own: tuple(sorted(g for g in found if g < own)))


def fsync_not_needed(put: Callable[..., None]) -> None:
    write = ReceivedBlocks.write

    def writing(self: Any, data: bytes) -> BlockId:
        try:
            return write(self, data)
        except StorageFailed as error:
            block = BlockId(self._log.generation, self._next)
            if isinstance(error.__cause__, UnknownOutcome) and self._filesystem.read(self.place(block)) == data:
                self._next += 1
                return block  # "it is there"
            raise

    put(ReceivedBlocks, "write", writing)


def cleaned_at_the_newest_checkpoint(put: Callable[..., None]) -> None:
    def low(history: Any, uid: str) -> BlockId | None:
        manifest = history.restore_point
        position = manifest and received.recorded(manifest, uid, history.log_id)
        return position.next if position else None

    put(received, "low_mark", low)


def acknowledged_before_it_is_durable(put: Callable[..., None]) -> None:
    write = ReceivedBlocks.write

    def writing(self: Any, data: bytes) -> BlockId:
        try:
            return write(self, data)
        except GenerationFenced:
            raise
        except PenstockError:
            return BlockId(self._log.generation, self._next)

    put(ReceivedBlocks, "write", writing)


BUGS = [
    unsealed,
    seal_deleted_early,
    folder_not_checked,
    generation_without_folder_not_sealed,
    fsync_not_needed,
    cleaned_at_the_newest_checkpoint,
    acknowledged_before_it_is_durable,
]


@pytest.mark.parametrize("plant", BUGS)
def test_G5_a_planted_bug_is_found(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch.setattr)

    assert any(walk(seed)[1] for seed in range(8 * SEEDS))


def test_G5_the_seal_alone_keeps_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    not_checked(monkeypatch.setattr)

    assert [(seed, story) for seed in range(SEEDS) if (story := walk(seed))[1]] == []
