"""What comes from outside while jobs run: operators, readers, accidents. Each takes one chance that a plan grants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.entries import Claim, Manifest, Pin
from penstock.checkpoint.paths import entry as path_of
from penstock.handles import CheckpointId, EntryNumber
from simulation.changes import Changes, driver
from simulation.damage import damaged
from simulation.letter_judge import puts_letters
from simulation.letter_tools import LetterDesk
from simulation.oracle import check_liveness
from simulation.orders import Orders
from simulation.process import Driver
from simulation.tools import Tool, condemn_tool, pin_tool, rewind_tool, stranger, unpin_tool

if TYPE_CHECKING:
    from simulation.world import World

MS = 1_000
MOST_FOLDERS = 2
"""With exported checkpoints in one story."""


@dataclass(slots=True)
class Plan:
    """How often operators and readers may still act."""

    rewinds: int = 0
    pins: int = 0
    takes: int = 0
    requests: int = 0
    power_cuts: int = 0
    freezes: int = 0
    wipes: int = 0
    deploys: int = 0
    damages: int = 0
    strangers: int = 0
    drains: int = 0
    renames: int = 0
    imports: int = 0
    replays: int = 0
    drops: int = 0
    expiries: int = 0


class Acts:
    """Everything that may be done to a world, by chance."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._orders = Orders(world)
        self.changes = Changes(world)
        self._letters = LetterDesk(world)

    @property
    def is_urgent(self) -> bool:
        """Whether now is when something outside does the most harm."""
        is_owing = self._plan.rewinds and self._world.ledger.facts.is_owing
        return (
            bool(is_owing)
            or bool(self._plan.expiries and self._unconfirmed)
            or self._orders.is_nagging
            or self._may_replay
            or self._may_drop
        )

    def act(self) -> None:
        """One of the things that are still granted."""
        world, plan, shape = self._world, self._plan, self._world.pipeline.shape
        acts: list[Callable[[], None]] = []
        if world.disk.in_flight:
            acts += [self._land, self._land]
        for left, act in (
            (world.faults.starts, self._another),
            (world.faults.crashes, self._crash),
            (plan.rewinds and world.chance.random() < 0.3, self._rewind),
            (plan.pins, self._pin),
            (plan.takes, self._take),
            (plan.requests, self._request),
            (self._orders.is_nagging, self._orders.nag),
            (plan.power_cuts, self._cut),
            (plan.freezes, self._freeze),
            (plan.wipes and any(world.ledger.facts.published.values()), self._wipe),
            (plan.deploys, self._deploy),
            (plan.damages and not world.disk.rotten and self._may_damage, self._damage),
            (world.disk.rotten, self._repair),
            (plan.strangers, self._stranger),
            (plan.drains, self._drain),
            (plan.renames, self._rename),
            (plan.imports and len(world.exported) < MOST_FOLDERS and self.changes.exportable, self.changes.export),
            (plan.imports and world.exported and not world.is_strange and not shape.without, self._import),
            (plan.replays and world.ledger.facts.finals, self._replay),
            (plan.expiries and world.outside.owners and world.chance.random() < 0.1, self._expire),
            (plan.drops and world.ledger.facts.finals and world.chance.random() < 0.3, self._drop),
        ):
            if left:
                acts.append(act)
        if plan.rewinds and world.ledger.facts.is_owing:
            acts += [self._rewind] * 4
        if self._may_replay:
            acts += [self._replay] * 4
        if self._may_drop:
            acts += [self._drop] * 4
        if plan.expiries and self._unconfirmed:
            acts += [self._expire] * 8
        if acts:
            world.chance.choice(acts)()
        if world.ledger.violation is not None:
            raise world.ledger.violation

    # ---------------------------------------------------------------------------------------------------- accidents

    def _land(self) -> None:
        world = self._world
        what = world.disk.land_one(world.chance.randrange(len(world.disk.in_flight)))
        world.tell(f"what was on its way lands: {what}")
        world.count("landed late")

    @property
    def _unconfirmed(self) -> list[str]:
        """Identities whose marker alone says that something which is open in the log is published."""
        world, facts = self._world, self._world.ledger.facts
        manifest = facts.manifests.get(facts.restore if facts.restore is not None else -1)
        open = [item for item in manifest.open if item.target in world.outside.owners] if manifest is not None else []
        done = [item for item in open if all(ref.path in facts.done for ref in item.files)]
        return sorted({item.target for item in done} & world.outside.versions.keys())

    def _expire(self) -> None:
        """All are stopped for longer than a marker lives."""
        world = self._world
        for process in list(world.processes):
            world.kill(process)
        self._plan.expiries -= 1
        ids = self._unconfirmed or sorted(world.outside.owners.keys() & world.outside.versions.keys())
        if not ids:
            return
        id = world.chance.choice(ids)
        del world.outside.versions[id]
        world.expired.add(id)
        world.tell(f"the marker of {id} has expired")
        world.count("expiry")

    def _another(self) -> None:
        """A driver beside those that live."""
        self._world.faults.starts -= 1
        self._world.count("zombie" if self._world.processes else "start")
        self._world.start(driver(self._world))

    def _crash(self) -> None:
        world = self._world
        if world.processes:
            world.faults.crashes -= 1
            victim = world.chance.choice(world.processes)
            world.tell(f"{victim.name} is killed")
            world.kill(victim)
            if world.chance.random() < 0.3 or world.importing is not None:
                check_liveness(world, durable_only=world.chance.random() < 0.5)

    def _cut(self) -> None:
        """The power fails for everybody: what was not synced is lost."""
        world = self._world
        self._plan.power_cuts -= 1
        world.tell("the power fails")
        for process in list(world.processes):
            world.kill(process)
        world.disk.crash()
        world.ledger.crashed()
        world.count("power cut")

    def _freeze(self) -> None:
        """Rather somebody who has read the log and not yet claimed it: then most happens meanwhile."""
        world = self._world
        if world.processes:
            self._plan.freezes -= 1
            victim = world.chance.choice([p for p in world.processes if p.owned is None] or world.processes)
            victim.frozen_until = world.steps + world.chance.choice((20, 100, 250))
            world.tell(f"{victim.name} is paused until step {victim.frozen_until}")

    def _take(self) -> None:
        """A reader takes a final file away."""
        world = self._world
        finals = [path for path in world.disk.files if path.startswith("/out/") and "/.penstock/" not in path]
        if finals:
            self._plan.takes -= 1
            world.disk.remove(world.chance.choice(sorted(finals)))
            world.count("reader takes")

    # ---------------------------------------------------------------------------------------------------- operators

    def _wipe(self) -> None:
        self._plan.wipes -= 1
        self.changes.wipe()

    def _damage(self) -> None:
        """An entry rots on the disk, or is removed by hand (never the newest: its number would be used again)."""
        world, facts = self._world, self._world.ledger.facts
        known = [n for n in facts.entries if world.disk.is_entry(n)]
        fit = [n for n in known if isinstance(facts.entries[n].body, Manifest | Claim | Pin)]
        if len(fit) < 2:
            return
        self._plan.damages -= 1
        number = world.chance.choice((fit[-1], world.chance.choice(fit)))
        with_letters = [n for n in fit if puts_letters(facts.entries[n])]
        if with_letters:
            number = world.chance.choice((number, with_letters[-1]))
        path = path_of(EntryNumber(number))
        data = world.disk.files[path]
        if number < facts.tail and world.chance.random() < 0.2:
            world.disk.damage(path, None)
        else:
            other = world.disk.files[path_of(EntryNumber(world.chance.choice(known)))]
            world.disk.damage(path, damaged(data, other, number, world.chance))
        world.is_strange = True
        world.tell(f"{path} is damaged")
        world.count("damage")

    def _repair(self) -> None:
        """From a copy; or, if it is there but cannot be read, by going past it (R8)."""
        world, chance = self._world, self._world.chance
        world.disk.mend(missing_only=chance.random() < 0.6)
        if not world.disk.rotten:
            return
        known = world.restorable_now()
        to = CheckpointId(chance.choice(known)) if known and chance.random() < 0.9 else None
        world.count("go past")
        world.start(Tool(world, world.name("rewind"), rewind_tool(to, discard=False, past_unreadable=True)))

    def _stranger(self) -> None:
        if self._world.ledger.facts.tail < 0:
            return
        self._plan.strangers -= 1
        self._world.start(Tool(self._world, self._world.name("stranger"), stranger))

    def _deploy(self) -> None:
        self._plan.deploys -= 1
        self.changes.deploy()

    def _rename(self) -> None:
        self._plan.renames -= 1
        self.changes.rename()

    def _import(self) -> None:
        self._plan.imports -= 1
        self.changes.begin_with_a_folder()

    @property
    def _may_replay(self) -> bool:
        return bool(self._plan.replays) and self._world.ledger.letters.is_open

    @property
    def _may_damage(self) -> bool:
        facts = self._world.ledger.facts
        return not self._world.pipeline.shape.letters or any(facts.letters.values())

    @property
    def _may_drop(self) -> bool:
        return bool(self._plan.drops) and self._world.ledger.letters.is_dear

    def _replay(self) -> None:
        if self._letters.replay():
            self._plan.replays -= 1

    def _drop(self) -> None:
        if self._letters.drop():
            self._plan.drops -= 1

    def _drain(self) -> None:
        if self._orders.drain():
            self._plan.drains -= 1

    def _target(self) -> CheckpointId | None:
        """Any checkpoint somebody may have seen in the log, condemned or not by now; mostly one that is restorable."""
        facts = self._world.ledger.facts
        known = facts.known() if self._world.chance.random() < 0.6 else sorted(facts.manifests)
        return CheckpointId(self._world.chance.choice(known)) if known else None

    def _below_newest(self) -> CheckpointId | None:
        """Something restorable below the newest checkpoint, whose output may be open; or empty state."""
        facts = self._world.ledger.facts
        newest = max(facts.manifests, default=-1)
        known = [id for id in facts.known() if id != newest]
        return CheckpointId(self._world.chance.choice(known)) if known else None

    def _rewind(self) -> None:
        """By a tool (which fences whoever runs), or by a driver that is started with it."""
        world, chance = self._world, self._world.chance
        if len(world.ledger.facts.manifests) < 2 or world.is_strange or self._world.pipeline.shape.without:
            return
        self._plan.rewinds -= 1
        to = self._target() if chance.random() < 0.4 else self._below_newest()
        if to is None and world.terms.shape.receives:
            return  # blocks that every checkpoint is past are gone: empty state would not have all rows
        discard = chance.random() < 0.6
        world.count("rewind")
        if chance.random() < 0.6:
            plans = chance.random() < 0.3
            world.start(Tool(world, world.name("rewind"), rewind_tool(to, discard=discard, plans=plans)))
            return
        wanted = {"rewind_to": to} if to is not None else {"fresh": True}
        world.start(Driver(world, world.name("driver"), rewind={**wanted, "discard_unpublished": discard}))

    def _pin(self) -> None:
        world, to = self._world, self._target()
        self._plan.pins -= 1
        pins = sorted(world.ledger.facts.pins)
        if pins and world.chance.random() < 0.4:
            world.start(Tool(world, world.name("unpin"), unpin_tool(pins[0])))
        elif to is not None and world.chance.random() < 0.25 and not world.is_strange:
            world.start(Tool(world, world.name("condemn"), condemn_tool(to)))
        elif to is not None:
            world.start(Tool(world, world.name("pin"), pin_tool(to, f"p{world.steps}")))
            world.count("pin")

    def _request(self) -> None:
        if self._orders.ask():
            self._plan.requests -= 1
