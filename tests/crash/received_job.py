"""A job over rows that a receiver of its own takes from a connection: it answers each line when its rows are durable.

With ``RECEIVED_EARLY=1`` it answers before: the negative control, which must lose rows.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import penstock as ps
from crash.torture_pipeline import sink


class Numbers(ps.receivers.Receiver):
    """Listens, takes lines of numbers, and says ``ok`` to each."""

    def on_start(self, store: ps.receivers.Store) -> None:
        take = store.store if os.environ.get("RECEIVED_EARLY") else store.store_reliably
        self.open = [socket.create_server(("127.0.0.1", int(os.environ["RECEIVED_PORT"])))]
        with suppress(OSError):  # a stop ends what waits
            while True:
                connection, _ = self.open[0].accept()
                self.open.append(connection)
                with suppress(ConnectionError), connection, connection.makefile("rw", encoding="ascii") as lines:
                    for line in lines:
                        take([{"id": int(number)} for number in line.split(",")])
                        lines.write("ok\n")
                        lines.flush()

    def on_stop(self) -> None:
        for each in self.open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.receivers.Source(Numbers(), schema="id LONG", block_interval_ms=20)
    p.read("numbers", source).write("out", sink("out"))
