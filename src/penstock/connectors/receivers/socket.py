"""``ps.socket``: text from a TCP server, record by record."""

from __future__ import annotations

import codecs
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.connectors.limits import check_limit
from penstock.connectors.receivers.blocks import BlockLimits
from penstock.connectors.receivers.receiver import ReceiverReader, block_limits
from penstock.connectors.receivers.rows import Receiver, Store
from penstock.errors import GraphError, SourceUnavailable
from penstock.handles import RECEIVED, UNLOGGED, Guarantee, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.source import SourceContext

__all__ = ["Source"]

log = logging.getLogger("penstock")

CHUNK: Final = 8_192
"""Most bytes of one read."""
_SINGLE_BYTES: Final = ("ascii", "utf-8", "iso8859", "cp125", "koi8", "latin")
"""Beginnings of names of encodings in which no byte of another character equals one of ASCII."""

# ---- bytes to records ------------------------------------------------------------------------------------------------

Record = tuple[str, str | None]
"""The text of a record, and what is wrong with it, if anything."""


class RecordSplitter:
    r"""Splits bytes, as they come, into records.

    A carriage return before the delimiter goes if the delimiter is a newline. Empty records stay. A record that is
    too long is cut, and is bad.

    >>> splitter = RecordSplitter("\n", "utf-8", 4)
    >>> list(splitter.feed(b"one\r\ntw")), list(splitter.feed(b"o\n\nthree\nf"))
    ([('one', None)], [('two', None), ('', None), ('thre', 'longer than 4 bytes')])
    >>> list(splitter.end(None))
    [('f', None)]
    """

    def __init__(self, delimiter: str, encoding: str, max_record_bytes: int) -> None:
        self._delimiter = delimiter.encode(encoding)
        self._trims = delimiter == "\n"
        self._encoding = encoding
        self._most = max_record_bytes
        self._buffer = bytearray()
        self._kept: bytes | None = None  # the beginning of a record that is too long

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are complete with these bytes."""
        searched = max(0, len(self._buffer) - len(self._delimiter) + 1)
        self._buffer += data
        start = 0
        while (end := self._buffer.find(self._delimiter, max(start, searched))) >= 0:
            yield self._record(bytes(self._buffer[start:end]))
            start = end + len(self._delimiter)
        del self._buffer[:start]
        self._shorten()

    def _shorten(self) -> None:
        """Keep only the beginning of a record that is too long, and what may be the beginning of a delimiter."""
        if len(self._buffer) > self._most + len(self._delimiter) + 1:
            if self._kept is None:
                self._kept = bytes(self._buffer[: self._most])
            del self._buffer[: len(self._buffer) - len(self._delimiter) + 1]

    def _record(self, data: bytes) -> Record:
        kept, self._kept = self._kept, None
        if self._trims and data.endswith(b"\r"):
            data = data[:-1]
        if kept is not None or len(data) > self._most:
            shown = (kept if kept is not None else data)[: self._most]
            return shown.decode(self._encoding, "replace"), f"longer than {self._most} bytes"
        try:
            return data.decode(self._encoding), None
        except UnicodeDecodeError as error:
            return data.decode(self._encoding, "replace"), f"not {self._encoding}: {error.reason}"

    def end(self, why: str | None) -> Iterator[Record]:
        """The unfinished record, if there is one: bad if the connection ended for a reason."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        if rest or self._kept is not None:
            text, wrong = self._record(rest)
            yield text, wrong or why


# ---- the receiver ----------------------------------------------------------------------------------------------------


class SocketReceiver(Receiver):
    """Connects to a server, again and again, and stores its records.

    Args:
        source: what the user declared.
        count: gets the names of counters, and by how much they grow.
    """

    def __init__(self, source: Source, count: Callable[[str, int], None]) -> None:
        self._source = source
        self._count = count
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def on_start(self, store: Store) -> None:
        """Receive until the attempts are used up, or the source stops.

        Raises:
            SourceUnavailable: the server was not reached at the last attempt.
        """
        source, attempts = self._source, 0
        while not self._stopped.is_set():
            why, received = self._connection(store)
            if received:
                attempts = 0  # the server is there: what follows is another failure
            attempts += 1
            if self._stopped.is_set():
                return
            if source.max_attempts is not None and attempts >= source.max_attempts:
                if why is None:
                    return  # the server has ended the stream
                msg = f"{source.describe()}: {why}, {attempts} times in a row. Is the server there?"
                raise SourceUnavailable(msg)
            if attempts & (attempts - 1) == 0:  # the first, 2nd, 4th, …: a server that stays away fills no log
                log.warning(
                    "%s: %s; connecting again in %d ms", source.describe(), why or "it ended", source.retry_delay_ms
                )
            self._stopped.wait(source.retry_delay_ms / 1_000)

    def on_stop(self) -> None:
        """Close the connection, which ends a read that waits."""
        self._stopped.set()
        with self._lock:
            if self._socket is not None:
                _shut(self._socket)

    def _connection(self, store: Store) -> tuple[str | None, bool]:
        """One connection, to its end: why it ended, ``None`` if in order, and whether anything came."""
        source, received = self._source, False
        splitter = RecordSplitter(source.delimiter, source.encoding, source.max_record_bytes)
        try:
            connection = socket.create_connection((source.host, source.port), source.connect_timeout_ms / 1_000)
        except OSError as error:
            return f"it cannot be connected ({error})", False
        with connection:
            with self._lock:
                self._socket = connection
                if self._stopped.is_set():
                    return "the source stopped", False
            connection.settimeout(None if source.read_timeout_ms is None else source.read_timeout_ms / 1_000)
            why: str | None = None
            try:
                while data := connection.recv(CHUNK):
                    received = True
                    self._keep(store, splitter.feed(data))
            except TimeoutError:
                why = f"nothing came for {source.read_timeout_ms} ms"
            except OSError as error:
                why = f"the connection broke ({error})"
            if self._stopped.is_set():
                why = "the source stopped"
            self._keep(store, splitter.end(None if why is None else f"unfinished: {why}"))
            with self._lock:
                self._socket = None
        return why, received

    def _keep(self, store: Store, records: Iterator[Record]) -> None:
        found = list(records)
        bad = sum(wrong is not None for _, wrong in found)
        if bad:
            self._count("bad_records", bad)
        rows = found if self._source.with_bad else [(text,) for text, wrong in found if wrong is None]
        if rows:
            store.store(rows)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it has ended by itself
        log.debug("a connection was closed already: %s", error)


# ---- the source ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    r"""Text of a TCP server as rows ``value STRING``, one for each record. For tests, tools, and devices that push.

    A server on a socket sends nothing twice. Records that are in the log are never lost and are read exactly once;
    those that were on their way are lost with a crash: at-most-once from end to end.

    An unfinished record is one only if the server ends the connection in order. After a reset, a time-out or a stop it
    is bad, as is one that is too long or not in the encoding. Bad records are counted (``bad_records``) and left out;
    with ``with_bad`` they come as rows, with the reason in the column ``_bad STRING``, which is ``NULL`` otherwise.

    Args:
        host: of the server.
        port: of the server.
        delimiter: ends a record; before a newline a carriage return is taken off.
        encoding: ASCII, UTF-8, or one with a byte for each character.
        max_record_bytes: longer records are bad.
        max_attempts: connections without any data in a row before the source ends, or fails if the server was not
            reached; ``None`` tries for ever.
        retry_delay_ms: how long to wait before the next connection.
        connect_timeout_ms: how long to wait for a connection.
        read_timeout_ms: connect again if nothing comes for so long; ``None`` waits for ever.
        with_bad: add the column ``_bad``, and rows of bad records.
        block_interval_ms: how long rows collect before they are written to the log at most; a tenth of it if the job
            waits for rows.
        max_backlog_bytes: while so many bytes of rows are not read yet, nothing more is taken from the connection.
        durable: keep records in the log; otherwise in memory, where a restart loses them.

    Raises:
        GraphError: an argument is impossible.

    >>> Source("localhost", 9999).describe()
    'socket localhost:9999'
    """

    host: str
    port: int
    delimiter: str = field(default="\n", kw_only=True)
    encoding: str = field(default="utf-8", kw_only=True)
    max_record_bytes: int = field(default=1024 * 1024, kw_only=True)
    max_attempts: int | None = field(default=None, kw_only=True)
    retry_delay_ms: int = field(default=500, kw_only=True)
    connect_timeout_ms: int = field(default=10_000, kw_only=True)
    read_timeout_ms: int | None = field(default=None, kw_only=True)
    with_bad: bool = field(default=False, kw_only=True)
    block_interval_ms: int = field(default=200, kw_only=True)
    max_backlog_bytes: int = field(default=256 * 1024 * 1024, kw_only=True)
    durable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            msg = f"port={self.port!r} is not possible. Give a number from 1 to 65535."
            raise GraphError(msg)
        if not self.delimiter:
            msg = "delimiter='' is not possible. Give the text that ends a record, such as '\\n'."
            raise GraphError(msg)
        for name in ("max_record_bytes", "max_attempts", "connect_timeout_ms", "read_timeout_ms"):
            check_limit(name, getattr(self, name))
        check_limit("retry_delay_ms", self.retry_delay_ms, least=0)
        self._check_encoding()
        self._limits()

    def _check_encoding(self) -> None:
        try:
            name = codecs.lookup(self.encoding).name
            self.delimiter.encode(self.encoding)
        except (LookupError, UnicodeEncodeError) as error:
            msg = f"encoding={self.encoding!r} is not possible: {error}. Give one such as 'utf-8' or 'latin-1'."
            raise GraphError(msg) from error
        if not name.startswith(_SINGLE_BYTES) or name.startswith("utf-8-"):
            msg = (
                f"encoding={self.encoding!r} is not possible: a delimiter could be found inside a character. Give "
                "ASCII, UTF-8 or one with a byte for each character, or write a ps.receivers.Receiver."
            )
            raise GraphError(msg)

    def _limits(self) -> BlockLimits:
        usual = BlockLimits()
        return block_limits(
            block_interval_ms=self.block_interval_ms,
            block_bytes=usual.bytes,
            max_backlog_rows=usual.backlog_rows,
            max_backlog_bytes=self.max_backlog_bytes,
        )

    @property
    def guarantee(self) -> Guarantee:
        """A position is replayed from the log; without a log nothing is."""
        return Guarantee.EXACTLY_ONCE if self.durable else Guarantee.AT_MOST_ONCE

    def replayed(self, end: Position | None) -> Source:  # noqa: ARG002 - all blocks of a copy are read
        """The same source: a run until caught up receives nothing, and reads the blocks of its state to their end."""
        return self

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return RECEIVED if self.durable else UNLOGGED

    def schema(self, spark: SparkSession) -> StructType:  # noqa: ARG002 - the same in every session
        """``value STRING``, with ``_bad STRING`` if asked for."""
        from pyspark.sql.types import StringType, StructType

        value = StructType().add("value", StringType())
        return value.add("_bad", StringType()) if self.with_bad else value

    def open(self, context: SourceContext, resume: Position | None) -> ReceiverReader:
        """A reader that goes on after ``resume``.

        Raises:
            GraphError: there is no job whose state directory could keep the rows.
            StateIncompatible: the position is of another kind, or belongs to other blocks.
            CheckpointUnreadable: a block is missing.
        """
        receiver = SocketReceiver(self, context.count)
        schema = self.schema(context.spark)
        return ReceiverReader(context, receiver, schema, self._limits(), resume, durable=self.durable)

    def describe(self) -> str:
        """The address, for people."""
        return f"socket {self.host}:{self.port}"
