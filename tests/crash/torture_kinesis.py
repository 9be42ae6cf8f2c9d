"""Kills a Kinesis-to-files job at every place it has while its shards are split and merged, and watches its leases.

Rows are put all along, several of a user as an aggregate; the job's client is throttled and its iterators expire, by
chance. What counts in the end is what was put, and that no checkpoint has a row of a user that was put before one of
the checkpoint before. A watcher reads the lease table all the while: it never goes back, and is never ahead of the
newest checkpoint. At the end it is where the job is.

make torture-kinesis                      some tens of kills
make torture-kinesis ARGS="--kills 60 --seed 7 --keep"
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import duckdb  # noqa: E402 - found through the path above
from bench import result  # noqa: E402

from crash import campaign as campaigns  # noqa: E402
from crash import conduct  # noqa: E402
from crash.kcl_takeover import EPOCH, Handover, hand_over  # noqa: E402
from crash.kinesis_feed import KinesisFeed  # noqa: E402
from crash.kinesis_job import EXPIRED, THROTTLED  # noqa: E402
from crash.verdict import judge  # noqa: E402
from integration.dynamo_server import DynamoServer, dynamo_server  # noqa: E402
from integration.kinesis_server import KinesisServer, kinesis_server  # noqa: E402
from penstock.connectors.kinesis.lease_table import LeaseTable  # noqa: E402
from penstock.connectors.kinesis.positions import lease_order, to_lease  # noqa: E402
from penstock.connectors.kinesis.shards import KIND, KinesisPosition, decode  # noqa: E402
from penstock.control.client import JobDirectory  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402

PER_SECOND, GAP = 100, 9
LOOK = 0.1
"""Seconds from one look at the lease table to the next."""

ORDER = """
    SELECT count(*) FROM (
        SELECT min(id) < lag(max(id)) OVER (PARTITION BY user ORDER BY epoch) AS is_early
        FROM (SELECT id, user, {epoch} AS epoch
              FROM read_json('{folder}/part-*', format = 'newline_delimited', filename = true,
                             columns = {{id: 'BIGINT', user: 'VARCHAR'}}))
        WHERE id >= 0 GROUP BY user, epoch
    ) WHERE is_early
"""


class LeaseWatcher:
    """Reads the lease table of a job all the while, and then its log: what it says must be true, and stay so."""

    def __init__(self, dynamo: DynamoServer, name: str, home: Path) -> None:
        self._table = LeaseTable(dynamo.client(), name)
        self._table.create()
        self._home = home
        self._seen: dict[str, tuple[int, int, int]] = {}
        self.looks = 0
        self.regressions: Counter[str] = Counter()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lease-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def behind(self) -> list[str]:
        """The shards whose lease is not where the newest checkpoint is."""
        position, leases = self._position(), self._table.read()
        assert position is not None
        return [
            shard
            for shard in position.unfinished
            if shard not in leases or leases[shard].checkpoint != to_lease(position.shards[shard].position)
        ]

    def _run(self) -> None:
        try:
            while not self._over.wait(LOOK):
                self._look()
        except BaseException as error:
            self._failure = error

    def _look(self) -> None:
        leases = {shard: lease_order(lease.checkpoint) for shard, lease in self._table.read().items()}
        position = self._position()  # of a checkpoint that was completed when they were read, or after that
        self.looks += 1
        self.regressions["gone"] += len(self._seen.keys() - leases.keys())
        for shard, order in leases.items():
            self.regressions["back"] += order < self._seen.get(shard, order)
            state = position.shards.get(shard) if position is not None else None
            if state is not None:
                self.regressions["ahead"] += order > lease_order(to_lease(state.position))
            elif position is None or shard not in position.shards:
                self.regressions["unknown"] += 1
        self._seen = leases

    def _position(self) -> KinesisPosition | None:
        try:
            point = JobDirectory(str(self._home / "state"), "torture").read().restore_point
        except (PenstockError, OSError):
            return None
        for snapshot in point.tasks if point else ():
            if snapshot.position is not None and snapshot.position.kind == KIND:
                return decode(snapshot.position)
        return None


def torture(home: Path, arguments: argparse.Namespace) -> conduct.Outcome:
    """Kills, the verdicts on what was published and exported all the same, and the controls."""
    killed = conduct.folder(home, "killed")
    with kinesis_server("kinesis-local", home / "server") as server, dynamo_server(home) as dynamo:
        feed = _feed(server, dynamo, killed, arguments)
        campaign, watcher = _campaign(killed, arguments.seed, feed), LeaseWatcher(dynamo, feed.stream, killed)
        with closing(feed), closing(watcher):
            _kill(campaign, arguments)
        verdict = judge(killed, feed)
        problems = [*verdict.problems, *campaign.notes, *_watched(watcher)]
        early = _count(ORDER, killed / "order")
        if early:
            problems.append(f"{early} times a checkpoint has a row of a user that was put before one of the last")
        details = conduct.details(campaign, verdict) | {"reshards": dict(feed.reshards), "looks": watcher.looks}
        verdicts = {"killed": verdict}
        if not arguments.short:
            details["uninterrupted"] = _uninterrupted(conduct.folder(home, "whole"), killed, feed, problems)
            conduct.check_reach(campaign, arguments.kills, problems)
            broken = conduct.folder(home, "broken")
            with closing(_feed(server, dynamo, broken, arguments)) as other:
                control = conduct.negative_control(_campaign(broken, arguments.seed, other), problems)
            verdicts[conduct.CONTROL] = control
            details["negative_control"] = asdict(control)
        handover = hand_over(conduct.folder(home, "handed"), server, dynamo, arguments.seed, per_second=PER_SECOND)
        problems += _judge(handover)
        controls = {name: _control(name, home, server, dynamo, arguments) for name in CONTROLS}
        problems += [f"the negative control {name} was not noticed" for name, found in controls.items() if not found]
    conduct.show(campaign, verdicts)
    figures = conduct.figures(campaign, verdict) | _figures(feed, watcher, killed)
    figures |= {"kcl_lost": handover.lost, "kcl_repeated_intervals": handover.repeated_intervals}
    return conduct.Outcome(figures, problems, details | {"lease_controls": controls})


def _figures(feed: KinesisFeed, watcher: LeaseWatcher, home: Path) -> dict[str, result.Figure]:
    trouble = Counter((home / "trouble").read_text(encoding="ascii").split())
    return {
        "reshards": sum(feed.reshards.values()),
        "aggregates": feed.aggregates,
        "throttled": trouble[THROTTLED],
        "expired": trouble[EXPIRED],
        "lease_looks": watcher.looks,
        "lease_regressions": sum(watcher.regressions.values()),
    }


def _judge(handover: Handover) -> list[str]:
    """What must not be when one goes on where another has been."""
    kcl = handover.kcl
    wrong = {
        f"{handover.lost} rows were lost from penstock to the KCL and back": handover.lost,
        f"the KCL got rows of {handover.repeated_intervals} checkpoints again": handover.repeated_intervals > 1,
        f"the KCL got {len(kcl) - len(set(kcl))} rows twice": len(kcl) > len(set(kcl)),
        f"penstock repeated {handover.repeated_after} rows after the KCL": handover.repeated_after,
        "the KCL came to the end of no shard": not handover.ended,
        "no rows were left for the one that comes after the KCL": not handover.after,
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def _watched(watcher: LeaseWatcher) -> list[str]:
    """What the watcher has seen that must not be."""
    found = [f"leases {what}: {count} times" for what, count in watcher.regressions.items() if count]
    behind = watcher.behind()
    return found + [f"at the end the lease of {shard} is not where the job is" for shard in behind]


def _kill(campaign: campaigns.Campaign, arguments: argparse.Namespace) -> None:
    try:
        if arguments.short:
            campaign.strike("checkpoint.manifest.written", "group", hit=3)
            campaign.strike("recovery.committed", "python")
        else:
            campaigns.run(campaign, arguments.kills)
            campaign.zombies()
        campaign.finish(again=not arguments.short)
    finally:
        campaign.close()


CONTROLS = ("EXPORTED_EARLY", "COMPARED_AS_TEXT")


def _control(
    name: str, home: Path, server: KinesisServer, dynamo: DynamoServer, arguments: argparse.Namespace
) -> list[str]:
    """What the watcher says of a job with a mistake in what it exports."""
    folder = conduct.folder(home, name.lower().replace("_", "-"))
    feed = _feed(server, dynamo, folder, arguments)
    # Seldom a checkpoint: what is exported before one is ahead of it for long.
    campaign = _campaign(folder, arguments.seed, feed, every="4s")
    watcher = LeaseWatcher(dynamo, feed.stream, folder)
    with closing(feed), closing(watcher):
        try:
            driver = campaign.driver(**{name: "1"})
            campaign._running(driver, campaigns.entries(folder) + 5)
            driver.stop(campaigns.STOPPED)
        finally:
            campaign.close()
    return _watched(watcher)


def _count(query: str, folder: Path) -> int:
    with duckdb.connect() as engine:
        return int(engine.execute(query.format(folder=folder, epoch=EPOCH)).fetchall()[0][0])


def _uninterrupted(whole: Path, killed: Path, feed: KinesisFeed, problems: list[str]) -> dict[str, object]:
    """The stream from its beginning, in one go, with all shards there."""
    shutil.copytree(killed / "in", whole / "in")
    environment = feed.environment | {"KINESIS_JOB_TABLE": f"{feed.stream}-whole"}
    flush_rows = feed.open_shards
    return conduct.uninterrupted(
        whole, "kinesis_job.py", feed, problems, flush_rows=flush_rows, environment=environment
    )


def _feed(server: KinesisServer, dynamo: DynamoServer, home: Path, arguments: argparse.Namespace) -> KinesisFeed:
    gap = GAP if not arguments.short else 4
    return KinesisFeed(server, dynamo, home, arguments.seed, per_second=PER_SECOND, gap=gap)


def _campaign(home: Path, seed: int, feed: KinesisFeed, **options: str) -> campaigns.Campaign:
    return campaigns.Campaign(home, seed, feed, "kinesis_job:job", feed.environment, **options)


if __name__ == "__main__":
    sys.exit(conduct.conduct("torture-kinesis", __doc__, torture))
