"""The liveness oracle: kill everyone, drop what is in flight; one driver without faults comes to the end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from penstock.checkpoint.policy import CheckpointConfig
from penstock.errors import SinkIdentityConflict
from penstock.handles import CheckpointId
from penstock.job.start import StartOptions
from penstock.runtime.lifecycle import NoRestart
from simulation.exports import is_anothers
from simulation.mischief import Faults
from simulation.process import Driver, is_after_the_end
from simulation.tools import Tool, rewind_tool

if TYPE_CHECKING:
    from simulation.world import World

HORIZON = 30_000
"""Decisions after which a run without faults should long be over."""


def check_liveness(world: World, *, durable_only: bool) -> None:
    """From what is durable now everything is published in the end, and nothing is left lying about.

    Where an entry cannot be read a start refuses: then the operator goes past it first. Where somebody wants the job to
    begin with a folder, and it has not yet, that is done again as well.
    """
    _check(world, durable_only=durable_only)
    begins = world.importing
    if begins is not None and not is_anothers(world, begins.folder or "") and not world.is_strange:
        world.count("oracle of an import")
        _check(world, durable_only=durable_only, brings=begins)


def _check(world: World, *, durable_only: bool, brings: StartOptions | None = None) -> None:
    world.count("oracle")
    fresh = copy_of(world, Random(world.chance.getrandbits(32)), durable_only=durable_only)
    try:
        if fresh.disk.rotten:
            _go_past(fresh)
        owed = fresh.ledger.letters.owed() if brings is None else {}
        driver = _driven(fresh, brings=brings)
        if fresh.expired and isinstance(driver.outcome, SinkIdentityConflict):
            driver = _driven(fresh, brings=brings)  # the operator has said what was published
        if is_after_the_end(driver.outcome) and fresh.ledger.facts.is_drained:
            driver = _go_back(fresh, driver)
        if (world.is_grown or fresh.ledger.facts.is_drained) and is_after_the_end(driver.outcome):
            return
        missing = fresh.ledger.missing() + fresh.ledger.letters.unread(owed)
        if fresh.ledger.violation is None and fresh.ledger.facts.finals:
            fresh.ledger.letters.look()
        if fresh.ledger.violation is None and (missing or not getattr(driver.outcome, "published", False)):
            world.ledger.violated("liveness", f"the fresh driver ends with {driver.outcome!r}; {missing[:4]}")
        elif fresh.ledger.violation is None and (litter := fresh.ledger.litter()):
            world.ledger.violated("litter", f"nobody needs {litter[:4]}, and nobody deletes it")
        world.coverage["repeated"] = world.coverage.get("repeated", 0) + fresh.coverage.get("repeated", 0)
    except AssertionError as violation:
        world.ledger.violated("liveness", str(violation))
    finally:
        fresh.end()
    if world.ledger.violation is not None:
        world.story += ["---- the fresh driver of the liveness oracle ----", *fresh.story[-40:]]
        raise world.ledger.violation


def _driven(fresh: World, brings: StartOptions | None = None) -> Driver:
    driver = Driver(fresh, fresh.name("oracle"), strategy=NoRestart(), drops_state=True, brings=brings)
    _finish(fresh, driver)
    return driver


def _go_back(fresh: World, refused: Driver) -> Driver:
    """A drained job reads nothing more, and all that it has read is published; to go on it is rewound."""
    missing = fresh.ledger.missing(unread=False)
    if missing:
        fresh.ledger.violated("drain", f"the job was drained, and {missing[:4]}")
        raise fresh.ledger.violation or AssertionError
    if fresh.is_strange or fresh.pipeline.shape.without:
        return refused
    fresh.count("go back")
    _finish(fresh, Tool(fresh, "operator", rewind_tool(undrained(fresh), discard=False)))
    return _driven(fresh)


def undrained(world: World) -> CheckpointId | None:
    """The newest checkpoint at which nothing was drained yet, or empty state."""
    cut_short = world.ledger.facts.cut_short
    known = [id for id in world.restorable_now() if not cut_short.get(id)]
    return CheckpointId(known[-1]) if known else None


def left_behind(world: World, *, durable_only: bool) -> int:
    """Equal where the fresh driver would meet the same, and be judged alike."""
    outside, disk = world.outside, world.disk
    files = frozenset(disk.durable_items() if durable_only else disk.files.items())
    owners = frozenset((key, world.last_init.get(key)) for key in outside.owners)
    acknowledged = frozenset(outside.acknowledged.items())
    remembered = (frozenset(outside.versions.items()), owners, acknowledged, frozenset(disk.rotten))
    wanted = (world.pipeline.shape, world.is_grown, world.importing, world.asked_about_markers)
    return hash((files, remembered, world.ledger.facts.verdicts(), wanted))


def copy_of(world: World, chance: Random, *, durable_only: bool) -> World:
    """A world without mischief in which all processes are dead, and what is in flight never lands."""
    fresh = type(world).plain(world, chance, Faults(), world.ledger.facts.copy())
    fresh.coordinator = CheckpointConfig(interval=50_000, retry_pause=1_000, commit_backoff=1_000)
    fresh.disk = world.disk.copy_for(fresh, durable_only=durable_only)
    fresh.disk.mend(missing_only=True)
    fresh.ledger.crashed()
    fresh.outside = world.outside.copy()
    return fresh


def _go_past(world: World) -> None:
    known = world.restorable_now()
    to = CheckpointId(known[-1]) if known else None
    tool = Tool(world, "operator", rewind_tool(to, discard=False, past_unreadable=True))
    _finish(world, tool)
    if world.expired and isinstance(tool.outcome, SinkIdentityConflict):
        tool = Tool(world, "operator", rewind_tool(to, discard=False, past_unreadable=True))
        _finish(world, tool)  # the operator has said what was published
    if "No entry is left" in str(tool.outcome):
        world.disk.mend()  # there is a copy, or the job begins in another directory
    elif tool.outcome != "done":
        world.ledger.violated("R8", f"nobody gets past an entry that cannot be read: {tool.outcome!r}")


def _finish(world: World, process: Driver | Tool) -> None:
    world.start(process)
    while process.outcome is None:
        if not world.step() or world.steps > HORIZON:
            world.ledger.violated("liveness", f"{process.name} does not come to an end")
            break
    if world.ledger.violation is not None:
        raise world.ledger.violation
