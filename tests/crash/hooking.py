"""Clients of a webhook and a server of lines, for a job that is killed again and again; what became of their rows."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import duckdb

from core.http_kit import free_port

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROWS = 5
"""Of a request."""
SECONDS = 0.05
"""Event time from one row to the next."""

EXPECTED = """
    SELECT client, time_bucket(INTERVAL 10 SECOND, "at") AS window_start, count(*) AS n, sum(id)::BIGINT AS ids
    FROM read_json('{notes}', format = 'newline_delimited',
                   columns = {{id: 'BIGINT', client: 'VARCHAR', 'at': 'TIMESTAMP'}})
    WHERE id >= 0 GROUP BY ALL
"""
PUBLISHED = """
    SELECT client, window_start, n, ids FROM read_json('{home}/windows/part-*', format = 'newline_delimited',
        columns = {{client: 'VARCHAR', window_start: 'TIMESTAMP', n: 'BIGINT', ids: 'BIGINT'}})
"""


class HookClients:
    """Send numbered rows, each request with its key until it is acknowledged, and note what was.

    Args:
        count: of clients that send at the same time.
    """

    def __init__(self, count: int = 2) -> None:
        self.port = free_port()
        self.noted: list[dict[str, object]] = []
        self.replayed = 0
        self.sent = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._given_up = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f"client {number}",)) for number in range(count)]
        for each in self._threads:
            each.start()

    def _run(self, client: str) -> None:
        while not self._over.is_set():
            with self._lock:
                first = self.sent
                self.sent += ROWS
            rows = [
                {"id": id, "client": client, "at": _text(BEGIN + timedelta(seconds=id * SECONDS))}
                for id in range(first, first + ROWS)
            ]
            if not self._send(rows, f"{client}-{first}".replace(" ", "-")):
                return

    def _send(self, rows: list[dict[str, object]], key: str) -> bool:
        while not self._given_up.is_set():
            replayed = self._post(rows, key)
            if replayed is not None:
                with self._lock:
                    self.noted += rows
                    self.replayed += replayed
                return True
            self._given_up.wait(0.05)
        return False

    def _post(self, rows: list[dict[str, object]], key: str) -> bool | None:
        """Whether the request had been stored before; ``None`` if it is not acknowledged."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(
                "POST", "/", json.dumps(rows), {"Content-Type": "application/json", "Idempotency-Key": key}
            )
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        assert answer.status in (200, 429, 503), answer.status
        return answer.getheader("Idempotency-Replayed") is not None if answer.status == 200 else None

    def finish(self) -> None:
        """Wait until each has its last acknowledgement; then close all windows."""
        self._over.set()
        for each in self._threads:
            each.join()
        far = BEGIN + timedelta(days=3650)
        assert self._send([{"id": -1, "client": "end", "at": _text(far)}], "end")

    def give_up(self) -> None:
        """End at once."""
        self._over.set()
        self._given_up.set()
        for each in self._threads:
            each.join()


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LineServer:
    """Sends numbers line by line to whoever connects, each once and never again."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.port = self._listener.getsockname()[1]
        self.sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._listener.accept()[0] as connection:
                    self._serve(connection)
            except OSError:
                continue

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(1)
        while not self._over.wait(0.02):
            first = self.sent
            self.sent += ROWS
            connection.sendall("".join(f"{number}\n" for number in range(first, first + ROWS)).encode())

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


# ---- what became of them ---------------------------------------------------------------------------------------------


@dataclass
class HookVerdict:
    """Rows of windows that are missing or too many, against SQL over what clients noted."""

    acknowledged: int
    windows: int
    lost: int
    repeated: int
    problems: list[str] = field(default_factory=list)


def judge_windows(home: Path, clients: HookClients) -> HookVerdict:
    """Compare the published windows with DuckDB's of the rows that were acknowledged."""
    notes = home / "noted.jsonl"
    notes.write_text("".join(json.dumps(row) + "\n" for row in clients.noted), encoding="utf-8")
    late = [line for path in (home / "late").glob("part-*") for line in path.read_text().splitlines()]
    published = list((home / "windows").glob("part-*"))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute(f"CREATE TABLE expected AS {EXPECTED.format(notes=notes)}")
        empty = "SELECT * FROM expected LIMIT 0"
        engine.execute(f"CREATE TABLE found AS {PUBLISHED.format(home=home) if published else empty}")
        compared = """
            SELECT coalesce(sum(greatest(coalesce(e.n, 0) - coalesce(f.n, 0), 0)), 0)::BIGINT,
                   coalesce(sum(greatest(coalesce(f.n, 0) - coalesce(e.n, 0), 0)), 0)::BIGINT,
                   count(*) FILTER (e.n = f.n AND e.ids <> f.ids), count(*)
            FROM expected e FULL JOIN found f USING (client, window_start)
        """
        (lost, repeated, exchanged, windows) = engine.execute(compared).fetchall()[0]
        twice = engine.execute(
            "SELECT count(*) FROM (FROM found SELECT client, window_start GROUP BY ALL HAVING count(*) > 1)"
        ).fetchall()[0][0]
    problems = [f"{exchanged} windows have other rows than were noted"] if exchanged else []
    problems += [f"{twice} windows were published twice"] if twice else []
    problems += [f"{len(late)} rows are called late"] if late else []
    return HookVerdict(len(clients.noted), windows, lost, repeated, problems)


def judge_lines(home: Path, observed: Path) -> tuple[int, list[int], list[int]]:
    """How many lines were seen in the log, which of them are not published, and which lines are published twice."""
    seen = [int(line) for line in observed.read_text(encoding="ascii").splitlines()] if observed.exists() else []
    found = Counter(
        json.loads(line)["id"] for path in (home / "lines").glob("part-*") for line in path.read_text().splitlines()
    )
    return len(seen), [n for n in seen if n not in found], [n for n, count in found.items() if count > 1]
