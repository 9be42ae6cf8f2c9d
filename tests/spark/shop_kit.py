"""A shop that the command lines of the docs are run on: a small job, its input, and its state as it was before."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import sys
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from core.cli_kit import Said, say
from crash.waiting import holds_within
from penstock.checkpoint.entries import Claim
from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.paths import REPORT
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.control import client
from penstock.control.client import JobDirectory
from penstock.handles import EntryNumber
from penstock.observability.status_file import decode as read_hint
from spark.job_kit import drop

SHOP = """\
import penstock as ps

ORDER = "user STRING, country STRING, amount DOUBLE, at TIMESTAMP"


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    lines = p.read("orders", ps.files.Source("in/", format="text", with_file=True))
    parsed, bad = lines.parse_json("value", ORDER, on_error="split")
    bad.dead_letter("bad-orders")
    timed = parsed.with_watermark("at", delay="5 seconds")
    totals = timed.group_by("user", ps.tumbling("1 minute")).agg("totals", ps.agg.sum("amount").alias("amount"))
    totals.write("totals-out", ps.files.Sink("out/totals", format="json"))
    totals.late.write("late-out", ps.files.Sink("out/late", format="json"))
    parsed.write("archive", ps.files.Sink("out/archive", format="json"))
"""

SHOP_V2 = (
    SHOP.replace(
        '    parsed.write("archive", ps.files.Sink("out/archive", format="json"))\n',
        '    countries = timed.group_by("country", ps.tumbling("1 minute"))\n'
        '    countries.agg("by-country", ps.agg.count().alias("n")).write("country-out", ps.console.Sink())\n',
    )
    .replace('.alias("amount"))', '.alias("amount"), ps.agg.count().alias("n"))')
    .replace("timed = parsed.", 'timed = parsed.where("amount > 0").')
)
"""No archive any more, a count by country, orders counted beside the sums, and refunds left out."""

RENAMED = SHOP.replace('"totals"', '"sums"').replace('p.read("orders"', 'p.read("sales"')
"""As the page on upgrades has it."""

SELDOM = ("--checkpoint-every", "1h")
"""But for the first and the last of a run, however slow the machine is."""


def order(user: str, amount: float | str, minute: int, second: int = 0) -> dict[str, object]:
    return {"user": user, "country": "de", "amount": amount, "at": f"2026-01-05T00:{minute:02}:{second:02}Z"}


FIRST = [
    order("u1", 3.0, 0),
    order("u2", 2.5, 0, 30),
    order("u1", 1.0, 1),
    order("u2", "2.5", 1),
    order("u2", 1, 1, 30),
]
SECOND = [order("u1", 2.0, 1, 10), order("u1", -1.0, 1, 20), order("u2", 4.0, 2, 10), order("u3", 9.0, 0, 1)]
THIRD = [order("u3", -5.0, 2, 20), order("u3", 1.0, 4), order("u1", "x", 4)]
"""Texts for amounts are bad rows, the last of the second is late, what is negative is a refund."""


class Shop:
    """A folder with a pipeline, its input, and its state, which can be as it was once again."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def log(self) -> Path:
        return self.home / "state" / "orders" / "log"

    @property
    def job(self) -> JobDirectory:
        return JobDirectory(self.home / "state", "orders")

    def open(self) -> None:
        """Two runs of the job with a savepoint between them, and more input: kept as ``stopped``.

        And as if it had been killed elsewhere, at its end and before it knew what is published: ``killed``.
        """
        (self.home / "state").mkdir()
        (self.home / ".penstock").symlink_to("state")  # where lines without --state look
        self.deploy(SHOP)
        for number, rows in enumerate((FIRST, SECOND)):
            drop(self.home / "in", f"{number}.txt", rows)
            assert self.run("penstock run shop:orders --until caught-up", *SELDOM).code == 0
            if number == 0:
                assert self.run("penstock savepoint create orders before-v2").out == "1\n"
        drop(self.home / "in", "2.txt", THIRD)
        self._keep("stopped")
        last = max(self.log.iterdir())
        assert json.loads(last.read_bytes())["kind"] == "stopped"
        last.unlink()
        self._move_to("web-1#9f86d081884c", 4242)
        self._keep("killed")

    def back(self, name: str) -> None:
        """As it was then, at the same place: sources and outputs are known by where they are."""
        for path in self.home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(self._kept(name), self.home, symlinks=True, dirs_exist_ok=True)
        client._released.clear()  # what this process ended since then has not begun yet
        self.deploy(SHOP)
        self.deploy(SHOP_V2, "shop_v2")

    def deploy(self, code: str, name: str = "shop") -> None:
        (self.home / f"{name}.py").write_text(code)
        sys.modules.pop(name, None)

    def run(self, line: str, *more: str) -> Said:
        """A line of a page. A job runs in this process, and until it has caught up, unless it is stopped otherwise."""
        words = shlex.split(line)[1:] + list(more)
        if words[0] == "run":
            words += ["--no-parent", *([] if "--until" in words else ["--until", "caught-up"])]
        return say(*words)

    def without_input(self, first: int) -> None:
        """Files from a number on are not there: a start restores, and has nothing to read, which is quick."""
        for number in range(first, 3):
            (self.home / "in" / f"{number}.txt").unlink()

    def run_until(self, line: str, ends: str, *, rows: int) -> tuple[Said, Said]:
        """A line that runs a job, and another that ends it once so many rows are read: what they said."""
        told: list[Said] = []

        def end() -> None:
            if not holds_within(240, lambda: self.job.owner() is not None and self.rows_read == rows):
                os.kill(os.getpid(), signal.SIGTERM)  # a stop in order, so that the test fails and does not hang
                return
            out, err = io.StringIO(), io.StringIO()
            code = dispatch(shlex.split(ends)[1:], Output(out=out, err=err))
            told.append(Said(code=code, out=out.getvalue(), err=err.getvalue()))

        ending = threading.Thread(target=end, name="ends-the-job")
        ending.start()
        ran = self.run(line, "--until", "stopped")
        ending.join(60)
        return ran, told[0]

    @property
    def rows_read(self) -> int:
        """Of the run that goes on, as it tells once a second."""
        hint = read_hint((self.home / "state" / "orders" / REPORT).read_bytes())
        return sum(hint.report.rows_read.values()) if hint is not None else 0

    def _keep(self, name: str) -> None:
        shutil.copytree(self.home, self._kept(name), symlinks=True)

    def _kept(self, name: str) -> Path:
        return self.home.with_name(f"{self.home.name}-{name}")

    def _move_to(self, host: str, pid: int) -> None:
        """The same log, as a process of another host would have written it."""
        previous = ""
        for path in sorted(self.log.iterdir()):
            entry = decode(path.read_bytes(), EntryNumber(int(path.stem)))
            body = replace(entry.body, host=host, pid=pid) if isinstance(entry.body, Claim) else entry.body
            data = encode(replace(entry, body=body, previous=previous if entry.number else ""))
            path.write_bytes(data)
            previous = sha256(data).hexdigest()
