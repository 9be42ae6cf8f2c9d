"""What sends to the jobs of the receivers bench: clients that POST, each its own process, and a server of lines."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROW_BYTES = 100

# ---- clients of a webhook --------------------------------------------------------------------------------------------


@dataclass
class Load:
    """What all clients did together."""

    rows: int
    seconds: float
    ack_ms: list[float]
    pushed_back: int

    @property
    def rows_per_s(self) -> int:
        return round(self.rows / self.seconds)

    @property
    def ack_p99_ms(self) -> float:
        ordered = sorted(self.ack_ms)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1)


def post_rows(port: int, *, clients: int, in_flight: int, rows: int, seconds: float) -> Load:
    """Have clients send for some seconds, together with so many requests in flight.

    Args:
        port: of the webhook.
        clients: number of processes.
        in_flight: requests that wait for an answer at any time, shared by the clients.
        rows: of a request.
        seconds: how long they send.
    """
    each = max(1, in_flight // clients)
    command = [sys.executable, str(Path(__file__).resolve()), str(port), str(each), str(rows), str(seconds)]
    running = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(clients)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [json.loads(process.communicate()[0]) for process in running]
    return Load(
        rows=sum(each["rows"] for each in told),
        seconds=max(each["seconds"] for each in told),
        ack_ms=[ms for each in told for ms in each["ack_ms"]],
        pushed_back=sum(each["pushed_back"] for each in told),
    )


def request(number: int, rows: int, client: int) -> bytes:
    """A request of JSON lines of 100 B with a key of its own."""
    lines = []
    for row in range(rows):
        start = f'{{"id":{number * rows + row},"user":"user{row % 1000}","created":{time.time_ns() // 1000},"text":"'
        lines.append(f'{start}{"x" * (ROW_BYTES - len(start) - 3)}"}}\n')
    body = "".join(lines).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        f"Idempotency-Key: {os.getpid()}-{client}-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def client(port: int, in_flight: int, rows: int, seconds: float, number: int) -> None:
    """One client: a connection for each request in flight, on one thread."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(in_flight)]
    for each in connections:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    began, sent_at, ack_ms, taken, pushed_back, requests = time.perf_counter(), {}, [], 0, 0, 0
    poller = select.poll()
    by_handle = {each.fileno(): each for each in connections}
    for each in connections:
        sent_at[each.fileno()] = time.perf_counter()
        each.sendall(request(requests, rows, number))
        requests += 1
        poller.register(each, select.POLLIN)
    while by_handle:
        for handle, _ in poller.poll():
            answer = by_handle[handle].recv(65_536)
            now = time.perf_counter()
            if answer.startswith(b"HTTP/1.1 200 "):
                ack_ms.append((now - sent_at[handle]) * 1e3)
                taken += rows
            elif answer.startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")):
                pushed_back += 1
            else:
                msg = f"answered {answer[:80]!r}"
                raise AssertionError(msg)
            if now - began < seconds and b"connection: close" not in answer.lower():
                sent_at[handle] = time.perf_counter()
                by_handle[handle].sendall(request(requests, rows, number))
                requests += 1
            else:
                poller.unregister(handle)
                by_handle.pop(handle).close()
    took = time.perf_counter() - began
    print(json.dumps({"rows": taken, "seconds": took, "ack_ms": ack_ms, "pushed_back": pushed_back}), flush=True)


# ---- lines of a socket -----------------------------------------------------------------------------------------------


class Lines:
    """Sends lines, evenly, to whoever is connected; each begins with the microsecond at which it was sent."""

    def __init__(self, per_second: int) -> None:
        self._each = max(1, per_second // 100)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._listener.accept()[0] as connection:
                    while not self._over.wait(0.01):
                        created = time.time_ns() // 1000
                        connection.sendall(f"{created},{'x' * (ROW_BYTES - 18)}\n".encode() * self._each)
            except OSError:
                continue

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


def main(arguments: Sequence[str]) -> None:
    port, in_flight, rows, seconds, number = arguments
    client(int(port), int(in_flight), int(rows), float(seconds), int(number))


if __name__ == "__main__":
    main(sys.argv[1:])
