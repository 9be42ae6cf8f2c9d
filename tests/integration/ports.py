"""Finds ports of the loopback interface that nothing listens on. They are free when found; nothing keeps them so.

They lie below those that the system hands out to outgoing connections: so a broker that comes back to its ports after a
kill does not find some client's connection sitting on one.
"""

from __future__ import annotations

import random
import socket

from integration.broker_settings import HOST

RANGE = range(20_000, 32_000)
"""Linux hands out ports from 32768, macOS from 49152."""


def free_ports(count: int) -> list[int]:
    """So many different ports, all free at the same moment."""
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(RANGE, len(RANGE)):
            if (bound := _bind(port)) is not None:
                held.append(bound)
            if len(held) == count:
                return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
    msg = f"no {count} free ports in {RANGE}"
    raise OSError(msg)


def _bind(port: int) -> socket.socket | None:
    bound = socket.socket()
    try:
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        return None
    return bound
