"""The version of a cluster's transactions, which the client library does not tell: one request of Kafka's protocol.

Brokers answer this request before anybody logs in, so it needs no secrets; a listener with TLS may want a certificate.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.connectors.secrets import resolve

if TYPE_CHECKING:
    from penstock.connectors.kafka.client import Connection

_SECONDS: Final = 5.0
_API_VERSIONS: Final = 18
_FLEXIBLE: Final = 3
"""The version of the request from which on brokers tell their features."""
_FINALIZED: Final = 2
"""The tag of the features that the whole cluster has, in the answer."""
_UNSUPPORTED_VERSION: Final = 35
_MOST_BYTES: Final = 1 << 20


def transaction_version(connection: Connection) -> int | None:
    """The cluster's ``transaction.version``, 0 if it has none; ``None`` if no broker could be asked."""
    for server in connection.servers.split(","):
        host, _, port = server.rpartition("://")[2].rpartition(":")
        try:
            with _connected(host.strip("[]"), int(port), resolve(connection.options)) as wire:
                return parse_transaction_version(_ask(wire))
        except (OSError, ValueError, IndexError, struct.error):  # another broker, or nobody, tells
            continue
    return None


def request() -> bytes:
    """The request, with its length before it."""
    name, version = b"penstock", b"1"
    body = b"".join(bytes([len(text) + 1]) + text for text in (name, version)) + b"\0"
    message = struct.pack(">hhih", _API_VERSIONS, _FLEXIBLE, 1, len(name)) + name + b"\0" + body
    return struct.pack(">i", len(message)) + message


def parse_transaction_version(answer: bytes) -> int:
    """The version in an answer, without its length.

    Raises:
        ValueError: it is no such answer.
    """
    reader = _Reader(answer)
    reader.number(4)  # of the request
    error = reader.number(2)
    if error == _UNSUPPORTED_VERSION:
        return 0  # older than features are
    if error:
        msg = f"error {error}"
        raise ValueError(msg)
    for _ in range(reader.varint() - 1):
        reader.take(6)
        reader.skip_tags()
    reader.number(4)  # the throttle
    for tag, content in reader.tags():
        if tag == _FINALIZED:
            return _level(_Reader(content))
    return 0


def _level(reader: _Reader) -> int:
    found = 0
    for _ in range(reader.varint() - 1):
        name = reader.take(reader.varint() - 1)
        level = reader.number(2)
        reader.number(2)
        reader.skip_tags()
        if name == b"transaction.version":
            found = level
    return found


class _Reader:
    """Reads Kafka's flexible encoding."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._content):
            msg = "the answer is too short"
            raise ValueError(msg)
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def tags(self) -> Iterator[tuple[int, bytes]]:
        for _ in range(self.varint()):
            tag = self.varint()
            yield tag, self.take(self.varint())

    def skip_tags(self) -> None:
        for _ in self.tags():
            pass


def _ask(wire: socket.socket) -> bytes:
    wire.sendall(request())
    size = int.from_bytes(_received(wire, 4), "big")
    if not 0 < size < _MOST_BYTES:
        msg = f"{size} bytes are no answer"
        raise ValueError(msg)
    return _received(wire, size)


def _received(wire: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = wire.recv(left)
        if not part:
            msg = "the connection was closed"
            raise ValueError(msg)
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


@contextmanager
def _connected(host: str, port: int, options: Mapping[str, object]) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), _SECONDS) as plain:
        if "SSL" not in str(options.get("security.protocol", "PLAINTEXT")).upper().removeprefix("SASL_"):
            yield plain
            return
        with _tls(options).wrap_socket(plain, server_hostname=host) as secure:
            yield secure


def _tls(options: Mapping[str, object]) -> ssl.SSLContext:
    """As the client's own options say, as far as Python can; nothing secret is sent, so a name is not checked."""
    authority = options.get("ssl.ca.location")
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.check_hostname = False
    if "ssl.certificate.location" in options and "ssl.key.location" in options:
        password = options.get("ssl.key.password")
        context.load_cert_chain(
            str(options["ssl.certificate.location"]),
            str(options["ssl.key.location"]),
            None if password is None else str(password),
        )
    return context
