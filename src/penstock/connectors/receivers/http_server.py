"""A small HTTP server on threads of the driver: connections with limits, and a socket that outlives attempts."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.clock import Clock
from penstock.connectors.receivers.http_admission import RESTARTING, HttpAnswer, RequestHead, refused, too_large
from penstock.errors import ConnectorError, SourceUnavailable

if TYPE_CHECKING:
    import h11

log = logging.getLogger("penstock")

_CHUNK: Final = 64 * 1024
_MOST_HEADERS: Final = 100
_LINGER_SECONDS: Final = 2.0
"""How long the rest of a refused request is read, so that its client sees the answer."""
_CLOSE_SECONDS: Final = 2.0
"""How long a stop waits for requests that are being answered."""


class RequestHandler(Protocol):
    """Answers requests; called from the threads of all connections."""

    def begin(self, head: RequestHead) -> HttpAnswer | None:
        """The refusal of a request, seen its head; ``None`` if its body is wanted."""
        ...

    def finish(self, head: RequestHead, body: bytes) -> HttpAnswer:
        """The answer to a whole request."""
        ...

    def refused(self) -> None:
        """Count a request that did not come so far, such as one that broke a limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take.

    Attributes:
        header_bytes: most bytes of a request's head.
        body_bytes: most bytes of its body, as they are sent.
        connections: most connections at a time.
        request_ms: a request has to be there so long after its first byte.
        idle_ms: a connection is closed after so long without a request.
    """

    header_bytes: int
    body_bytes: int
    connections: int
    request_ms: int
    idle_ms: int = 60_000


class WebhookServer:
    """Listens at an address until it is closed. Without a handler each request gets 503.

    Args:
        host: the address to listen at.
        port: likewise.
        limits: of each connection.
        clock: for time-outs.

    Raises:
        SourceUnavailable: the address cannot be listened at.
        ConnectorError: h11 is not installed.
    """

    def __init__(self, host: str, port: int, limits: ConnectionLimits, clock: Clock) -> None:
        _load_h11()
        self._limits = limits
        self._clock = clock
        self._lock = threading.Condition()
        self._handler: RequestHandler | None = None
        self._tls: ssl.SSLContext | None = None
        self._connections: set[socket.socket] = set()
        self._busy = 0
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            msg = f"{host}:{port} cannot be listened at: {error.strerror or error}. Is another process listening there?"
            raise SourceUnavailable(msg) from error
        threading.Thread(target=self._accept, name=f"penstock-http-{port}", daemon=True).start()

    def attach(self, handler: RequestHandler, tls: ssl.SSLContext | None) -> None:
        """Give requests to a handler; connections from now on are encrypted by ``tls``."""
        with self._lock:
            self._handler, self._tls = handler, tls

    def detach(self, handler: RequestHandler) -> None:
        """Answer 503 from now on, unless another handler is there already."""
        with self._lock:
            if self._handler is handler:
                self._handler = None

    def close(self) -> None:
        """Listen no more. Requests that are being answered get a moment, then all connections are closed."""
        with self._lock:
            self._closed = True
            self._handler = None
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            self._lock.wait_for(lambda: not self._busy, _CLOSE_SECONDS)
            left = list(self._connections)
        for connection in left:
            _shut(connection)

    # ---- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning("a webhook could not accept a connection: %s", error)
                with self._lock:  # such as no file handles: do not spin
                    self._lock.wait(0.1)
                continue
            with self._lock:
                is_one_too_many = len(self._connections) >= self._limits.connections
                if not is_one_too_many:
                    self._connections.add(connection)
                tls = self._tls
            if is_one_too_many:
                self._count_refused()
                connection.close()
            else:
                threading.Thread(
                    target=self._serve, args=(connection, tls), name="penstock-http-connection", daemon=True
                ).start()

    def _serve(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        spoken = connection
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                spoken = self._encrypted(connection, tls)
            _Conversation(self, spoken, self._limits, self._clock).run()
        except OSError as error:  # resets, time-outs and bad TLS: the client's trouble
            if isinstance(error, ssl.SSLError | TimeoutError):
                self._count_refused()
            log.debug("a connection of a webhook ended: %s", error)
        except Exception:
            log.warning("a connection of a webhook failed", exc_info=True)
        finally:
            with self._lock:
                self._connections -= {connection, spoken}
            spoken.close()

    def _encrypted(self, connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        """The connection after its handshake, which has to be done in the time of a request.

        Raises:
            OSError: it is not.
        """
        spoken = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections = self._connections - {connection} | {spoken}
        seconds = self._limits.request_ms / 1_000
        spoken.settimeout(seconds)  # for each byte that is waited for; the timer is for all
        timer = threading.Timer(seconds, _shut, (spoken,))
        timer.daemon = True
        timer.start()
        try:
            spoken.do_handshake()
        except OSError:
            spoken.close()
            with self._lock:
                self._connections.discard(spoken)
            raise
        finally:
            timer.cancel()
        return spoken

    def _count_refused(self) -> None:
        handler = self._handler
        if handler is not None:
            handler.refused()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def begin(self, head: RequestHead) -> HttpAnswer | None:
        """The refusal of a request, seen its head; ``None`` if its body is wanted."""
        handler = self._handler
        return RESTARTING if handler is None else handler.begin(head)

    def finish(self, head: RequestHead, body: bytes, send: Callable[[HttpAnswer], None]) -> None:
        """Answer a whole request; ``close`` waits until the answer is sent."""
        with self._lock:
            self._busy += 1
            handler = self._handler
        try:
            send(RESTARTING if handler is None else handler.finish(head, body))
        finally:
            with self._lock:
                self._busy -= 1
                self._lock.notify_all()

    def broken(self) -> None:
        """Count a request that broke a limit."""
        self._count_refused()


def _shut(connection: socket.socket) -> None:
    """End what a thread waits for on a connection."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not that of TLS, which another thread may be using


def _load_h11() -> Any:
    try:
        import h11
    except ImportError as error:
        msg = "ps.http needs h11, which is not installed. Run pip install 'penstock[http]'."
        raise ConnectorError(msg) from error
    return h11


def tls_context(certificate: str, private_key: str) -> ssl.SSLContext:
    """How connections are encrypted; the files are read now.

    Raises:
        ConnectorError: one of them cannot be read, or they do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, private_key, password=lambda: "")  # never asks at a terminal
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        msg = f"Certificate {certificate} and private key {private_key} cannot be used: {why}. Give files in PEM."
        raise ConnectorError(msg) from None
    return context


class _TooSlow(TimeoutError):
    """A request did not come in time."""


class _Conversation:
    """One connection: request, answer, and so on."""

    def __init__(
        self, server: WebhookServer, connection: socket.socket, limits: ConnectionLimits, clock: Clock
    ) -> None:
        self._h11 = _load_h11()
        self._server = server
        self._connection = connection
        self._limits = limits
        self._clock = clock
        self._parser: h11.Connection = self._h11.Connection(
            self._h11.SERVER, max_incomplete_event_size=limits.header_bytes
        )
        self._deadline: int | None = None  # of the request that has begun

    def run(self) -> None:
        """Answer requests until the connection ends."""
        h11 = self._h11
        while self._request():
            if self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
                self._linger()
                return
            self._parser.start_next_cycle()
            self._deadline = None

    def _request(self) -> bool:
        """Receive and answer one request; ``False`` if the connection is to be closed at once."""
        h11 = self._h11
        try:
            event = self._next()
            if not isinstance(event, h11.Request):
                return False
            head = RequestHead(
                event.method.decode("ascii", "replace"),
                event.target.decode("ascii", "replace"),
                [(name.decode("ascii", "replace"), value.decode("latin-1")) for name, value in event.headers],
            )
            if self._is_too_large(head):
                self._server.broken()
                self._answer(refused(431, "The head is too large. Send fewer headers."))
                return True
            if (refusal := self._server.begin(head)) is not None:
                self._answer(refusal)
                return True
            body = self._body()
            if body is None:
                self._server.broken()
                self._answer(too_large(self._limits.body_bytes))
            else:
                self._server.finish(head, body, self._answer)
        except h11.RemoteProtocolError as error:
            self._server.broken()
            with suppress(h11.LocalProtocolError):
                self._answer(refused(error.error_status_hint, "The request is no valid HTTP."))
            self._linger()
            return False
        except _TooSlow:
            self._server.broken()
            with suppress(h11.LocalProtocolError):
                self._answer(refused(408, "The request was not there in time."))
            return False
        return True

    def _is_too_large(self, head: RequestHead) -> bool:
        size = len(head.target) + sum(len(name) + len(value) + 4 for name, value in head.headers)
        return size > self._limits.header_bytes or len(head.headers) > _MOST_HEADERS

    def _body(self) -> bytes | None:
        """The body as it was sent; ``None`` if it is too large."""
        h11 = self._h11
        if self._parser.they_are_waiting_for_100_continue:
            self._send(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])))
        found = bytearray()
        while not isinstance(event := self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                msg = "the connection ended within a request"
                raise ConnectionResetError(msg)
            found += event.data
            if len(found) > self._limits.body_bytes:
                return None
        return bytes(found)

    def _next(self) -> Any:
        """The next event of the client."""
        h11 = self._h11
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(self._receive())
        return event

    def _receive(self) -> bytes:
        """Bytes from the client, in the time that is left.

        Raises:
            _TooSlow: a request that has begun is not there in time.
        """
        if self._deadline is None:
            self._connection.settimeout(self._limits.idle_ms / 1_000)
            try:
                data = self._connection.recv(_CHUNK)
            except TimeoutError:
                return b""  # as if the client had closed it: no request has begun
            self._deadline = self._clock.now() + self._limits.request_ms * 1_000
            return data
        left = self._deadline - self._clock.now()
        if left <= 0:
            raise _TooSlow
        self._connection.settimeout(left / 1_000_000)
        try:
            return self._connection.recv(_CHUNK)
        except TimeoutError as error:
            raise _TooSlow from error

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, answer: HttpAnswer) -> None:
        import json

        h11 = self._h11
        if self._parser.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        content = json.dumps(answer.document).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), *answer.headers]
        if self._parser.their_state is not h11.DONE:
            headers.append(("Connection", "close"))  # the rest of the request is not wanted
        parts = [
            self._parser.send(h11.Response(status_code=answer.status, headers=headers)),
            self._parser.send(h11.Data(data=content)),
            self._parser.send(h11.EndOfMessage()),
        ]
        self._send(b"".join(part for part in parts if part))

    def _send(self, data: bytes | None) -> None:
        self._connection.settimeout(self._limits.request_ms / 1_000)
        self._connection.sendall(data or b"")

    def _linger(self) -> None:
        """Read what the client still sends, for a moment: closing at once could take the answer away from it."""
        until = self._clock.now() + int(_LINGER_SECONDS * 1_000_000)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            left = self._limits.body_bytes
            while left > 0 and (seconds := (until - self._clock.now()) / 1_000_000) > 0:
                self._connection.settimeout(seconds)
                data = self._connection.recv(_CHUNK)
                if not data:
                    return
                left -= len(data)
