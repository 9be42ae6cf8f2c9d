"""penstock dies, the real KCL goes on from its leases, and another penstock job goes on from those of the KCL."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import duckdb

from crash import campaign as campaigns
from crash.kinesis_feed import KinesisFeed
from crash.kinesis_job import MODE
from crash.waiting import until
from integration.dynamo_server import DynamoServer
from integration.kcl import KclApplication
from integration.kinesis_server import KinesisServer
from oracle.windows import FLUSH

PATIENCE = 180
ROWS = 1_500
"""Rows that the KCL has to consume before it is stopped."""

EPOCH = r"CAST(regexp_extract(filename, '-(\d+)-\d+-\d+\.json$', 1) AS BIGINT)"
"""In SQL, the checkpoint that published a file."""
IDS = """
    SELECT id, {epoch}
    FROM read_json('{folder}/part-*', format = 'newline_delimited', filename = true, columns = {{id: 'BIGINT'}})
    WHERE id >= 0
"""


@dataclass(frozen=True)
class Handover:
    """Who has processed which rows.

    Attributes:
        before: by row, the checkpoint of the job that died.
        kcl: the rows that the KCL got, in order.
        after: the rows of the job that came after it.
        all: the rows that can be read.
        ended: shards that the KCL read to their end.
    """

    before: dict[int, int]
    kcl: list[int]
    after: list[int]
    all: frozenset[int]
    ended: int

    @property
    def lost(self) -> int:
        """Rows that nobody has got."""
        return len(self.all - self.before.keys() - set(self.kcl) - set(self.after))

    @property
    def repeated_intervals(self) -> int:
        """Checkpoints of the dead job of which the KCL got rows again."""
        return len({self.before[id] for id in self.kcl if id in self.before})

    @property
    def repeated_after(self) -> int:
        """Rows of the second job that somebody had got before, or that it got twice."""
        return len(self.after) - len(set(self.after) - self.before.keys() - set(self.kcl))


def hand_over(home: Path, server: KinesisServer, dynamo: DynamoServer, seed: int, *, per_second: int) -> Handover:
    """Run one after the other over a stream that is put into and resharded meanwhile."""
    feed = KinesisFeed(server, dynamo, home, seed, per_second=per_second, gap=6)
    with closing(feed):
        campaign = campaigns.Campaign(home, seed, feed, "kinesis_job:job", feed.environment, every="3s")
        try:
            # Right after rows are published: what they are read from may not be exported yet.
            driver = campaign.driver(pause_at="sink.published", hit=4)
            assert driver.reaches(campaigns.REACHED), driver.tail()
            driver.kill("group")
            before = _ids(home / "order")
            kcl = KclApplication(home, feed.stream, feed.stream, kinesis=server.url, dynamo=dynamo.url)
            with closing(kcl):
                got = kcl.processed
                until(PATIENCE, "the KCL reads", lambda: bool(got.texts))
                first = feed.rows
                until(PATIENCE, "the KCL has got rows", lambda: feed.rows > first + ROWS and bool(got.ended))
                kcl.stop()
            threading.Event().wait(2)  # rows for the one that comes after
            feed.drop_flush(FLUSH)
            after = home / "after"
            after.mkdir()
            last = campaign.driver(
                "--until", "caught-up", state="state-after", TORTURE_OUT=str(after), **{MODE: "import"}
            )
            assert last.wait(campaigns.REACHED) == 0, last.tail()
        finally:
            campaign.close()
    lines = (home / "in" / "part-00000.jsonl").read_text(encoding="utf-8").splitlines()
    return Handover(
        before=dict(before),
        kcl=[id for text in got.texts if (id := _id(text)) is not None],
        after=[id for id, _ in _ids(after / "order")],
        all=frozenset(id for line in lines if (id := _id(line)) is not None),
        ended=len(got.ended),
    )


def _ids(folder: Path) -> list[tuple[int, int]]:
    with duckdb.connect() as engine:
        return engine.execute(IDS.format(folder=folder, epoch=EPOCH)).fetchall()


def _id(line: str) -> int | None:
    """The number of a row that can be read, aside those that only close windows."""
    try:
        row = json.loads(line)
        return row["id"] if row["id"] >= 0 and isinstance(row["amount"], float) else None
    except ValueError:
        return None
