"""A job over everything that is given rows: a webhook, summed in windows; a receiver of its own; text from a socket.

What of the socket is in the log is noted in ``OBSERVED``, after the receipt of its block. Eight small blocks are merged
into one file, and the disk has no room while there is a file ``full`` beside the job. Mistakes on purpose, the
negative controls: ``HOOK_EARLY=1`` answers before a block is durable, ``CLEANED_EARLY=1`` deletes what only the newest
checkpoint has read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import penstock as ps
from crash.received_job import Numbers
from crash.torture_pipeline import sink
from penstock.checkpoint import received
from penstock.checkpoint.received import ReceivedBlocks
from penstock.connectors.receivers.blocks import BlockWriter, decode_block
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import BlockId, RequestKey

_write, _check = ReceivedBlocks.write, ReceivedBlocks.check


def write(self: ReceivedBlocks, data: bytes, keys: Sequence[RequestKey] = ()) -> BlockId:
    block = _write(self, data, keys)
    self.last_data = data
    return block


def check(self: ReceivedBlocks) -> None:
    _check(self)
    if self._uid == "lines":
        values = decode_block(self.last_data, "here")["value"].to_pylist()
        with Path(os.environ["OBSERVED"]).open("a", encoding="ascii") as notes:
            notes.write("".join(f"{value}\n" for value in values))


ReceivedBlocks.write, ReceivedBlocks.check = write, check

ReceivedBlocks.__init__.__kwdefaults__["merge_at"] = 8

_write_temporary = LocalFileSystem._write_temporary


def write_temporary(self: LocalFileSystem, folder: Path, data: bytes) -> Path:
    if Path("full").exists():
        _write_temporary(self, folder, data[: len(data) // 2]).unlink()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _write_temporary(self, folder, data)


LocalFileSystem._write_temporary = write_temporary

if os.environ.get("HOOK_EARLY"):

    def offer(self: BlockWriter, table: object, key: object = None) -> bool:
        self.add(table, reliably=False)
        return True

    BlockWriter.offer = offer

if os.environ.get("CLEANED_EARLY"):

    def newest(history: received.History, uid: str) -> BlockId | None:
        if not history.restorable:
            return None
        manifest = history.restorable[max(history.restorable)]
        position = received.recorded(manifest, uid, history.log_id)
        return None if position is None else position.next

    received.low_mark = newest


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.http.Source(
        int(os.environ["HOOK_PORT"]), schema="id LONG, client STRING, at TIMESTAMP", block_interval_ms=20
    )
    counted = (
        p.read("hook", source)
        .with_watermark("at", delay="10 minutes", max_ahead=None)  # the row that closes all windows is years ahead
        .group_by("client", ps.tumbling("10 seconds"))
        .agg("counts", ps.agg.count().alias("n"), ps.agg.sum("id").alias("ids"))
    )
    counted.write("windows", sink("windows"))
    counted.late.write("late", sink("late"))
    mine = ps.receivers.Source(Numbers(), schema="id LONG", block_interval_ms=20)
    p.read("numbers", mine).write("out", sink("out"))
    lines = ps.socket.Source("127.0.0.1", int(os.environ["LINES_PORT"]), block_interval_ms=20, retry_delay_ms=50)
    p.read("lines", lines).select("CAST(value AS LONG) AS id").write("lines-out", sink("lines"))
