"""Kills a job that is given rows at every place it has, and compares what it published with what was acknowledged.

make torture-receivers                  42 kills
make torture-receivers ARGS="--kills 8"

The job has a webhook, whose clients send each request with its key until it is acknowledged; a receiver of its own and
a socket, which send nothing twice. Some drivers are paused, past a take-over, and then go on; some find the disk full.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from bench import result  # noqa: E402 - found through the path above

from core.http_kit import free_port  # noqa: E402
from crash.driver import Driver, all_gone, surroundings  # noqa: E402
from crash.hooking import HookClients, LineServer, judge_lines, judge_windows  # noqa: E402
from crash.receiving import START, Client, Strike, judge  # noqa: E402
from crash.waiting import clock, until  # noqa: E402
from penstock.control.client import JobDirectory  # noqa: E402

PAUSED = "paused"
"""Shape of a strike: SIGSTOP, another driver takes over, SIGCONT."""
FULL = "full disk"
"""Shape of a strike: the disk has no room for some seconds, in which nothing may be acknowledged; then SIGKILL."""
FENCED = 69

PLACES = (
    Strike("received.block.before", 9),
    Strike("received.block.durable", 12, "python"),
    Strike("received.sealed", 1),
    Strike("local.create.temp_written", 19, "python"),
    Strike("received.merge.before", 2),
    Strike("received.keys.written", 2),
    Strike("local.create.linked", 22),
    Strike("received.block.durable", 9, PAUSED),
    Strike("received.seal.before", 2, "python"),
    Strike("received.merge.written", 3, "python"),
    Strike("received.block.durable", 20, FULL),
    Strike("received.clean.before", 5),
    Strike("checkpoint.manifest.before", 3, "jvm"),
    Strike("checkpoint.manifest.written", 2, "python"),
    Strike("received.keys.written", 3, "python"),
    Strike("source.polled", 15),
    Strike("sink.staged", 3, "python"),
    Strike("received.clean.before", 9, PAUSED),
    Strike("received.merge.delete", 7),
    Strike("sink.commit.before", 2),
    Strike("checkpoint.manifest.before", 4, FULL),
    Strike("sink.files.moved", 1, "python"),
    Strike("log.claim.written", 1, "python"),
    Strike("recovery.restored", 1),
)
"""Where the job is struck, one place after the other and again; never a place at which it has not yet claimed."""


class Torture:
    """One job's folder, those who send to it, and its drivers, one after the other.

    Args:
        home: an empty folder.
        environment: more variables of each driver.
    """

    def __init__(self, home: Path, **environment: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.observed = home / "observed.txt"
        self.clients, self.client, self.lines = HookClients(), Client(), LineServer()
        self.kills = self.paused = self.full = 0
        self.problems: list[str] = []
        self._environment = environment
        self._number = 0

    def driver(self, *arguments: str, place: str | None = None, hit: int = 1) -> Driver:
        self._number += 1
        around = {
            "HOOK_PORT": str(self.clients.port),
            "RECEIVED_PORT": str(self.client.port),
            "LINES_PORT": str(self.lines.port),
            "OBSERVED": str(self.observed),
        }
        return Driver(
            self.home,
            self._number,
            *(arguments or ("--checkpoint-every", "200ms")),
            pipeline="hooked_job:job",
            pause_at=place,
            hit=hit,
            environment=around | self._environment,
        )

    def strike(self, strikes: Sequence[Strike]) -> None:
        """A driver for each, killed or paused at its place."""
        for each in strikes:
            driver = self.driver(place=each.place, hit=each.hit)
            assert driver.reaches(START), driver.tail()
            if each.shape == PAUSED:
                self._take_over(driver)
            elif each.shape == FULL:
                self._fill_disk(driver)
            else:
                driver.kill(each.shape)
            self.kills += 1

    def _take_over(self, paused: Driver) -> None:
        """Pause a driver until another one has acknowledged rows; then let it go on, and kill the other."""
        paused.signal(signal.SIGSTOP)
        # The paused one has the ports: clients are told of others.
        self.clients.port, self.client.port = free_port(), free_port()
        successor = self.driver("--take-over", "--checkpoint-every", "200ms")
        before = len(self.clients.noted)
        until(START, "the successor acknowledges", lambda: len(self.clients.noted) > before + 50, successor.tail)
        paused.release()
        paused.signal(signal.SIGCONT)
        code = paused.wait(START)
        assert code == FENCED, (code, paused.tail())
        before = len(self.clients.noted)
        until(START, "it goes on to", lambda: len(self.clients.noted) > before + 50, successor.tail)
        successor.kill("group")
        self.paused += 1

    def _fill_disk(self, driver: Driver) -> None:
        """Leave no room on the disk for some seconds; kill the driver once it acknowledges again, or has given up."""
        full = self.home / "full"
        full.touch()
        driver.release()
        threading.Event().wait(1)  # a block that was durable before may be acknowledged
        before = self._acknowledged
        threading.Event().wait(3)
        if self._acknowledged > before:
            self.problems.append(f"{self._acknowledged - before} rows were acknowledged while the disk was full")
        full.unlink()
        until(
            START,
            "the driver acknowledges again",
            lambda: driver.is_over or self._acknowledged > before + 50,
            driver.tail,
        )
        if not driver.is_over:
            driver.kill("group")
        self.full += 1

    @property
    def _acknowledged(self) -> int:
        return len(self.clients.noted) + len(self.client.acknowledged)

    def finish(self) -> None:
        """Let all clients come to their ends, and the job read all that it has."""
        last = self.driver("--checkpoint-every", "200ms", "--stop-timeout", "2min")
        self.clients.finish()
        self.client.stop()
        self.lines.stop()
        assert last.stop(150) == 0, last.tail()
        rest = self.driver("--until", "caught-up")
        assert rest.wait(START) == 0, rest.tail()

    def end(self) -> None:
        """Whatever happened, nothing of it is left."""
        self.clients.give_up()
        self.client.stop()
        self.lines.stop()
        assert all_gone(self.home) == 0


def torture(home: Path, kills: int) -> tuple[dict[str, result.Figure], list[str]]:
    """The figures, and what went wrong."""
    job = Torture(home)
    try:
        job.strike(list(itertools.islice(itertools.cycle(PLACES), kills)))
        job.finish()
    finally:
        job.end()
    mine = judge(home, job.client)
    windows = judge_windows(home, job.clients)
    seen, lines_lost, lines_repeated = judge_lines(home, job.observed)
    lost = len(mine.lost) + windows.lost + len(lines_lost)
    repeated = len(mine.repeated) + windows.repeated + len(lines_repeated)
    problems = [*job.problems, *windows.problems]
    problems += [f"lost: {mine.lost[:9]} {windows.lost} in windows, {lines_lost[:9]} of lines"] if lost else []
    problems += (
        [f"repeated: {mine.repeated[:9]} {windows.repeated} in windows, {lines_repeated[:9]}"] if repeated else []
    )
    problems += ["nothing was acknowledged"] if not (mine.acknowledged and windows.acknowledged and seen) else []
    figures: dict[str, result.Figure] = {
        "kills": job.kills,
        "acknowledged": mine.acknowledged + windows.acknowledged + seen,
        "lost": lost,
        "repeated": repeated,
        "paused": job.paused,
        "full_disks": job.full,
        "windows": windows.windows,
        "requests_replayed": job.clients.replayed,
    }
    return figures, problems


def loses_early_answers(home: Path) -> int:
    """The first negative control: how many rows are lost if answers come before blocks are durable."""
    job = Torture(home, HOOK_EARLY="1")
    try:
        job.strike([Strike("received.block.before", 40)])
        job.finish()
    finally:
        job.end()
    return judge_windows(home, job.clients).lost


def misses_early_cleaned(home: Path) -> bool:
    """The second one: whether a rewind misses blocks that were deleted since the newest checkpoint had read them."""
    job = Torture(home, CLEANED_EARLY="1")
    try:
        job.strike([Strike("received.clean.before", 40)])
        oldest = min(JobDirectory(home / "state", "torture").read().restorable)
        subprocess.run(
            [sys.executable, "-m", "penstock", "rewind", "torture", str(oldest), "--yes", "--state", "state"],
            cwd=home,
            env=surroundings(home),
            check=True,
            capture_output=True,
        )
        last = job.driver("--until", "caught-up")
        return last.wait(START) != 0 and "is missing" in last.said
    finally:
        job.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=42)
    arguments = parser.parse_args()
    home, began = Path(tempfile.mkdtemp(prefix="penstock-torture-")), clock()
    try:
        figures, problems = torture(home / "job", arguments.kills)
        lost = loses_early_answers(home / "early")
        problems += [] if lost else ["the negative control that answers early lost nothing"]
        missed = misses_early_cleaned(home / "cleaned")
        problems += [] if missed else ["the negative control that cleans early missed nothing"]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for problem in problems:
        print(f"PROBLEM {problem}")
    result.tell({**figures, "control_lost": lost, "control_missed": missed, "seconds": round(clock() - began, 1)})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
