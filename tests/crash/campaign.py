"""Kills a job again and again: where, in which shape, how often. Knows the places, not what the job computes."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from crash.driver import SHAPES, Driver, all_gone, entries, owner
from crash.feed import Feed
from crash.waiting import until
from oracle.windows import FLUSH
from penstock.cli.output import ExitCode
from penstock.failpoints import FAILPOINTS

COMMIT = (
    "checkpoint.manifest.written",
    "sink.commit.before",
    "sink.files.before_move",
    "local.move.before",
    "local.move.renamed",
    "sink.files.moved",
    "sink.kafka.begun",
    "sink.kafka.produced",
    "sink.kafka.marked",
    "sink.kafka.committed",
    "sink.published",
)
"""Between the manifest, which is the commit point, and its confirmation."""

RECOVERY = (
    "sink.commit.before",
    "recovery.committed",
    "recovery.delete.before",
    "local.move.renamed",
    "log.claim.written",
    "sink.published",
    "sink.kafka.marked",
    "recovery.restored",
    "sink.kafka.produced",
    "sink.files.moved",
)
"""Where a life is killed that follows a kill: it first publishes what the one before left open, then restores."""
AT_THE_END = ("log.append.before", "log.append.written")
"""Around the entry which says that everything is published: a job writes it when it is stopped in order."""

ZOMBIES = (("recovery.committed", 1), ("sink.commit.before", 3), (None, 1))
"""Where a driver is stopped while another takes over."""

EVERY = "500ms"
REACHED = 240.0
"""Seconds for a driver to start, on a busy machine, and come to its place."""
STOPPED = 150.0
"""Seconds for a driver to stop in order, which waits for two minutes until its output is published."""


@dataclass(frozen=True)
class Kill:
    place: str
    shape: str
    code: int
    in_recovery: bool

    @property
    def in_commit(self) -> bool:
        return self.place in COMMIT


@dataclass
class Campaign:
    """All lives of one job in one folder."""

    home: Path
    seed: int
    feed: Feed
    pipeline: str
    environment: Mapping[str, str] = field(default_factory=dict)
    every: str = EVERY
    away: str | None = None
    """What the error of a job says that could not reach its input, if the input is away at times."""
    kills: list[Kill] = field(default_factory=list)
    not_reached: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    fenced: int = 0
    cut_off: int = 0
    """Lives that were stopped in order, but whose input was away while they took their last checkpoint."""
    lives: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.feed.drop(2)

    # ------------------------------------------------------------------------------------------------------ lives

    def driver(
        self, *arguments: str, state: str = "state", pause_at: str | None = None, hit: int = 1, **environment: str
    ) -> Driver:
        made = Driver(
            self.home,
            len(self.lives),
            "--checkpoint-every",
            self.every,
            "--retained",
            "2",
            "--stop-timeout",
            "2min",
            *arguments,
            pipeline=self.pipeline,
            state=state,
            pause_at=pause_at,
            hit=hit,
            environment={**self.environment, **environment},
        )
        self.lives.append(made)
        return made

    def look(self, checkpoints: int) -> None:
        """A life without a kill, ended in order: it shows which places there are."""
        driver = self.driver()
        with self._feeding():
            self._running(driver, entries(self.home) + 1 + checkpoints)
        self._stop(driver)

    def strike(self, place: str, shape: str, *, hit: int = 1) -> bool:
        """Kill at a place; false if this life never came there."""
        self.feed.drop(2)
        driver = self.driver(pause_at=place, hit=hit)
        with self._feeding():
            if place in AT_THE_END:
                self._running(driver, entries(self.home) + 2)
                driver.signal(signal.SIGTERM)
            reached = driver.reaches(REACHED)
        if not reached:
            self.not_reached[place] += 1
            if not driver.is_over:
                self._stop(driver)
            elif place in AT_THE_END:
                self._require_end(driver.wait(1), driver, f"stopped before it came to {place}")
            else:
                self._require(driver.wait(1), ExitCode.ENDED, driver, f"before it came to {place}")
            return False
        self._kill(driver, place, shape)
        return True

    def strike_anywhere(self, shape: str) -> None:
        """Kill at a random moment after a random number of entries."""
        driver = self.driver()
        with self._feeding():
            self._running(driver, entries(self.home) + self.chance.randint(2, 5))
            threading.Event().wait(self.chance.random() * 0.5)  # which moment it is must not depend on a gate
        self._kill(driver, "anywhere", shape)

    def zombie(self, place: str | None, hit: int = 1) -> None:
        """Stop a driver, let another take over and publish, wake the first: it must find itself fenced."""
        first = self.driver(pause_at=place, hit=hit)
        with self._feeding():
            if place is None:
                self._running(first, entries(self.home) + 4)
            elif not first.reaches(REACHED):
                self.notes.append(f"the driver to be stopped never came to {place}: {first.tail()}")
                first.stop(STOPPED)
                return
            first.signal(signal.SIGSTOP)
            mark, fenced = entries(self.home), owner(self.home)
            second = self.driver(*([] if place is None else ["--take-over"]))  # suspended, it cannot say that it lives
            self._running(second, mark + 4)
        seen = self.published()
        first.release()
        first.signal(signal.SIGCONT)
        self._require(first.wait(60), 69, first, "woken after another had taken over")
        self.fenced += first.process.returncode == 69
        # The second may own several: it restarts if its input is away for long.
        old = {each for each in map(_generation, self.published() - seen) if each <= fenced}
        if old:
            self.notes.append(f"after the fence of generation {fenced} files of {sorted(old)} appeared")
        self._stop(second)

    def zombies(self) -> None:
        """One that is stopped before it opens its readers, one within a commit, and one anywhere."""
        for place, hit in ZOMBIES:
            self.zombie(place, hit)

    def finish(self, *, again: bool = True, **environment: str) -> None:
        """Close all windows and run to the end of the input, in order; doing so again publishes nothing."""
        self.feed.drop_flush(FLUSH)
        self._catch_up(**environment)
        if not again:
            return
        seen = self.published()
        self._catch_up(**environment)
        if self.published() != seen:
            self.notes.append("a second run to the end of the same input published something")

    def _catch_up(self, **environment: str) -> None:
        driver = self.driver("--until", "caught-up", **environment)
        self._require(driver.wait(300), 0, driver, "ran to the end of its input")

    def close(self) -> None:
        for driver in self.lives:
            driver.end()
        left = all_gone(self.home)
        if left:
            self.notes.append(f"{left} processes did not end by themselves")

    # ----------------------------------------------------------------------------------------------------- helpers

    def _feeding(self) -> AbstractContextManager[None]:
        return self.feed.feeding(lambda: entries(self.home))

    def _running(self, driver: Driver, entry: int) -> None:
        until(
            REACHED,
            f"the log has entry {entry}",
            lambda: driver.is_over or (driver.is_running and entries(self.home) >= entry),
            driver.tail,
        )

    def _kill(self, driver: Driver, place: str, shape: str) -> None:
        if driver.is_over:
            self.notes.append(f"ended with {driver.process.returncode} before it was killed: {driver.tail()}")
            return
        in_recovery = not driver.is_running
        if not driver.has_jvm:
            shape = "python"  # it stands where it asks whether anybody owns the job, before it starts its JVM
        code = driver.kill(shape)
        self.kills.append(Kill(place=place, shape=shape, code=code, in_recovery=in_recovery))
        expected = 75 if shape == "jvm" else -signal.SIGKILL
        if shape == "jvm" and place in AT_THE_END and code == 0:
            expected = 0  # Python writes the entry, and nothing after it needs the JVM
        self._require(code, expected, driver, f"{shape} killed at {place}")

    def _stop(self, driver: Driver) -> None:
        """Stop a life in order."""
        self._require_end(driver.stop(STOPPED), driver, "stopped by SIGTERM")

    def _require_end(self, code: int, driver: Driver, what: str) -> None:
        """Require the exit code of a stop. If its input was away just then it failed, and the next life goes on."""
        errors = [line for line in driver.tail().splitlines() if line.startswith("penstock:")]
        if code == ExitCode.FAILED and self.away is not None and any(self.away in line for line in errors):
            self.cut_off += 1
        else:
            self._require(code, ExitCode.ENDED, driver, what)

    def _require(self, code: int, expected: int, driver: Driver, what: str) -> None:
        if code != expected:
            self.notes.append(f"exit {code} instead of {expected}: {what}: {driver.tail()}")

    def published(self) -> set[str]:
        """Files that readers see."""
        return {str(path) for folder in ("out", "late", "bad") for path in (self.home / folder).glob("part-*")}

    @property
    def hits(self) -> set[str]:
        """Places that any life came to."""
        return {name for life in self.lives for name in life.record.read_text(encoding="utf-8").split()}


def plan(kills: int, reachable: set[str], chance: random.Random) -> Iterator[tuple[str, str, int]]:
    """Places, shapes and hits: each reachable place at its first hit, then more in the commit, then anywhere."""
    shapes = [SHAPES[index % 3] for index in range(kills)]
    first = [(name, 1) for name in FAILPOINTS if name in reachable]
    again = [(name, chance.randint(1, 4)) for _ in range(kills) for name in COMMIT if name in reachable]
    chance.shuffle(first)
    anywhere = [("anywhere", 1)] * 2
    chosen = (first + anywhere + again)[:kills]
    commits = [each for each in chosen if each[0] in COMMIT]
    others = [each for each in chosen if each[0] not in COMMIT]
    while commits or others:  # mixed, so that a run that is cut short has some of each
        source = commits if commits and (not others or chance.random() < 0.45) else others
        name, hit = source.pop(0)
        yield name, shapes.pop(), hit


def planned(kills: int) -> int:
    """How many of so many kills are at a place of their own; each third of these is followed by one in recovery."""
    return kills - kills // 4


def missed(campaign: Campaign, kills: int) -> list[str]:
    """Places that lives came to and none was killed at; an empty list if there are more places than kills."""
    reached = campaign.hits & set(FAILPOINTS)
    return sorted(reached - {kill.place for kill in campaign.kills}) if planned(kills) >= len(reached) else []


def run(campaign: Campaign, kills: int) -> None:
    """The kills of a whole run, a quarter of them followed by one during the recovery."""
    campaign.look(checkpoints=6)
    campaign.look(checkpoints=2)
    in_recovery = 0
    for number, (place, shape, hit) in enumerate(plan(planned(kills), campaign.hits, campaign.chance)):
        if place == "anywhere":
            campaign.strike_anywhere(shape)
        else:
            campaign.strike(place, shape, hit=hit)
        if number % 3 == 2:
            recovery = [place for place in RECOVERY if place in campaign.hits]  # others are waited for in vain
            campaign.strike(recovery[in_recovery % len(recovery)], SHAPES[in_recovery % 3])
            in_recovery += 1
        _progress(campaign)
    for place in missed(campaign, kills):
        campaign.strike(place, "group")  # the life that was to be killed there ended before it came to it
        _progress(campaign)
    for _ in range(kills):  # for places that a life never came to
        if len(campaign.kills) >= kills:
            break
        campaign.strike("sink.commit.before", "group", hit=campaign.chance.randint(1, 4))
        _progress(campaign)


def _progress(campaign: Campaign) -> None:
    last = campaign.kills[-1] if campaign.kills else None
    what = f"{last.shape} at {last.place}" if last else "none"
    print(f"  {len(campaign.kills)} kills, {campaign.feed.rows} rows, last: {what}", flush=True)


def _generation(path: str) -> int:
    """Of a published file's name, which ends in ``-<generation>-<number>.<ending>``."""
    return int(Path(path).name.split("-")[-2])
