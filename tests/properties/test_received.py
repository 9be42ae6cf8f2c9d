"""The write-ahead log of receivers under crashes, zombies, lost answers, failed syncs and rewinds (rule G5)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from planted import of_received
from planted.bug import BUGS, planted
from properties.received_kit import Act, Received, story

SEEDS = 60
LENGTH = 24
WEIGHTS = ({"crash": 2, "power fails": 2, "land": 2}, {"crash": 0.2, "power fails": 0.2, "land": 2, "start": 1})
"""How often an act is drawn: every other story is calm, so that it comes to several checkpoints."""
TELLING = ("start", "rewind", "clean", "read", "power fails")
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


def search(
    most: int, *, first: Sequence[Act] = (), acts_more: int = LENGTH, **bounds: int
) -> tuple[int, list[Act], str | None]:
    """Every story within bounds, shortest first: the number of worlds, and the first story that goes wrong.

    All stories begin with ``first``, and have at most ``acts_more`` acts after it.
    """
    seen = {story(list(first), **bounds).key()}
    front = [list(first)]
    for _ in range(acts_more):
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


PILED_UP: list[Act] = [("start",), *[("write", 0), ("confirm", 0)] * 4, ("read", 0), ("checkpoint", 0)]
"""A driver has written four blocks and read one: with the next clean-up two of them become one file."""


def search_merging(acts_more: int) -> tuple[int, list[Act], str | None]:
    """Every story of so many acts after blocks have piled up."""
    bounds = {"rows": 5, "starts": 3, "retained": 1, "rewinds": 0, "faults": 1}
    return search(60_000, first=PILED_UP, acts_more=acts_more, **bounds)


def test_G5_no_story_loses_or_repeats_a_row_of_blocks_that_are_merged() -> None:
    worlds, acts, wrong = search_merging(3)

    assert wrong is None, (acts, wrong)
    assert worlds > 300


@pytest.mark.slow
def test_G5_no_story_of_two_generations_and_two_rows_loses_or_repeats_one() -> None:
    worlds, acts, wrong = search(60_000, rows=2, starts=2, retained=1, rewinds=0, faults=1)

    assert wrong is None, (acts, wrong)
    assert worlds > 2_000


# ------------------------------------------------------------------------------------------------------ planted bugs


WITHOUT_KEYS = [name for name in BUGS if name.startswith("G5-") and not name.startswith("G5-keys-")]
"""The drivers here are given no keys; the stories of ``test_simulation.py`` are."""


@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_G5_a_planted_bug_is_found(name: str) -> None:
    with planted(name):
        if name.startswith("G5-merged-"):
            assert search_merging(3)[2]
        else:
            assert any(walk(seed)[1] for seed in range(SEEDS))


def test_G5_the_seal_alone_keeps_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    of_received.without_the_second_lock(monkeypatch.setattr)

    assert [(seed, story) for seed in range(SEEDS) if (story := walk(seed))[1]] == []
