"""``ps.http``: rows that clients send by POST, answered when they are in the job's write-ahead log."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import Clock, SystemClock, parse_duration
from penstock.connectors.limits import check_limit
from penstock.connectors.receivers.blocks import BlockLimits
from penstock.connectors.receivers.http_admission import (
    AdmissionRules,
    HttpAnswer,
    RequestHead,
    RowRate,
    content_type,
    is_loopback,
    refused,
)
from penstock.connectors.receivers.http_body import BodyReader, BodyRefused, DecodedBody, decompressed
from penstock.connectors.receivers.http_server import ConnectionLimits, WebhookServer, tls_context
from penstock.connectors.receivers.receiver import (
    ReceiverReader,
    block_limits,
)
from penstock.connectors.receivers.rows import Receiver, RequestStore, Store
from penstock.connectors.secrets import EnvironmentSecret, FileSecret, SecretRef, env, file
from penstock.errors import GraphError, PenstockError
from penstock.handles import RECEIVED, Guarantee, KeyLimits, Position, RequestKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.formats.json_arrow import JsonDecoder
    from penstock.interfaces.source import JobResources, SourceContext

__all__ = ["Source", "env", "file"]

log = logging.getLogger("penstock")

_MOST_TOKENS: Final = 2
CLOCK: Final = SystemClock()
_FULL_SECONDS: Final = 1
"""After how long a client may ask again whether there is room."""
_KEYS_FULL_SECONDS: Final = 60
"""After how long it may ask again whether there is room for its key: horizons are long."""
_UNAVAILABLE: Final = refused(
    503, "The rows were not stored for sure. Send the request again with its Idempotency-Key.", retry_after=1
)

# ---- requests --------------------------------------------------------------------------------------------------------


class WebhookHandler:
    """Answers the requests of one attempt.

    Args:
        source: what the user declared.
        reader: reads bodies as rows.
        store: takes the rows.
        count: gets the names of counters, and by how much they grow.
        clock: for keys and rates.
    """

    def __init__(
        self, source: Source, reader: BodyReader, store: RequestStore, count: Callable[[str, int], None], clock: Clock
    ) -> None:
        self._source = source
        self._reader = reader
        self._store = store
        self._count = count
        self._clock = clock
        self._rules = source.rules()
        self._lock = threading.Condition()
        self._in_flight: set[str] = set()
        most = source.max_rows_per_second
        self._rate = None if most is None else RowRate(most, clock.now())

    def begin(self, head: RequestHead) -> HttpAnswer | None:
        """The refusal of a request, seen its head; ``None`` if its body is wanted."""
        try:
            refusal = self._rules.refusal(head) or self._pause()
        except PenstockError as error:
            log.warning("%s: %s", self._source.describe(), error)
            refusal = refused(503, "The server is not set up. Send the request again later.", retry_after=10)
        if refusal is not None:
            self.refused()
        return refusal

    def refused(self) -> None:
        """Count a request of which nothing was stored."""
        self._count("refused_requests", 1)

    def _pause(self) -> HttpAnswer | None:
        """The answer while no rows are taken; ``None`` if they are."""
        if self._store.holds:
            return refused(503, "Older rows are read first. Send the request again.", retry_after=_FULL_SECONDS)
        if self._store.is_full:
            return _backlog()
        with self._lock:
            wait = 0 if self._rate is None else self._rate.wait(self._clock.now())
        return refused(429, "More rows come than are taken. Send them later.", retry_after=wait) if wait else None

    def finish(self, head: RequestHead, body: bytes) -> HttpAnswer:
        """Store the rows of a request, whole or not at all."""
        try:
            data = decompressed(body, head.get("content-encoding"), self._source.max_body_bytes)
            key = head.get("idempotency-key")
            if not key:
                answer = self._stored(self._decoded(data, head), None)
            else:
                with self._alone(key):
                    answer = self._once(key, data, head)
        except BodyRefused as error:
            answer = error.answer
        except PenstockError as error:
            log.warning("%s: a request was not stored: %s", self._source.describe(), error)
            answer = _UNAVAILABLE
        if answer.status != 200:  # noqa: PLR2004 - OK
            self.refused()
        return answer

    def _decoded(self, data: bytes, head: RequestHead) -> DecodedBody:
        return self._reader.read(data, content_type(head))

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Wait for another request with this key, which may be storing its rows."""
        with self._lock:
            self._lock.wait_for(lambda: key not in self._in_flight)
            self._in_flight.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight.discard(key)
                self._lock.notify_all()

    def _once(self, key: str, data: bytes, head: RequestHead) -> HttpAnswer:
        """Store a request unless it is stored already."""
        digest, now = sha256(data).hexdigest()[:32], self._clock.wall()
        known = self._store.blocks.find_key(key, now)
        if known is not None and known.digest != digest:
            return refused(422, "The Idempotency-Key was sent before with another body. Give each request its own.")
        if known is not None:
            return HttpAnswer(200, {"rows": known.rows, "bad": known.bad}, (("Idempotency-Replayed", "true"),))
        if not self._store.blocks.has_room_for_key(now, len(self._in_flight) - 1):
            return refused(429, "Too many Idempotency-Keys are kept. Send it later.", retry_after=_KEYS_FULL_SECONDS)
        decoded = self._decoded(data, head)
        return self._stored(decoded, RequestKey(key, digest, decoded.rows.num_rows, len(decoded.bad), now))

    def _stored(self, decoded: DecodedBody, key: RequestKey | None) -> HttpAnswer:
        table = _with_bad(decoded) if self._source.with_bad else decoded.rows
        if not self._store.offer(table, key):
            return _backlog()
        rows, bad = decoded.rows.num_rows, len(decoded.bad)
        if bad:
            self._count("bad_records", bad)
        if self._rate is not None:
            with self._lock:
                self._rate.take(table.num_rows, self._clock.now())
        return HttpAnswer(200, {"rows": rows, "bad": bad})


def _backlog() -> HttpAnswer:
    return refused(429, "Too many rows wait to be read. Send them later.", retry_after=_FULL_SECONDS)


def _with_bad(decoded: DecodedBody) -> pa.Table:
    """The good rows and behind them the bad ones, with what is wrong and their text."""
    import pyarrow as pa

    if not decoded.bad:
        return decoded.rows
    texts, reasons = zip(*decoded.bad, strict=True)
    bad = pa.table({"_bad": pa.array(reasons, pa.string()), "_corrupt_record": pa.array(texts, pa.string())})
    return pa.concat_tables([decoded.rows, bad], promote_options="default")


# ---- the receiver ----------------------------------------------------------------------------------------------------


class WebhookReceiver(Receiver):
    """Gives requests to the log while an attempt runs. The socket is the job's: it listens from then on to its end.

    Args:
        source: what the user declared.
        uid: of the source.
        decoder: of the declared columns.
        resources: of the job.
        count: gets the names of counters, and by how much they grow.
    """

    def __init__(
        self,
        source: Source,
        uid: str,
        decoder: JsonDecoder,
        resources: JobResources,
        count: Callable[[str, int], None],
    ) -> None:
        self._source = source
        self._uid = uid
        self._decoder = decoder
        self._resources = resources
        self._count = count
        self._stopped = threading.Event()
        self._detach: Callable[[], None] = lambda: None

    def on_start(self, store: Store) -> None:
        """Take requests until the source stops.

        Raises:
            SourceUnavailable: the address cannot be listened at.
            ConnectorError: a certificate or a token cannot be read, or the server is not installed.
        """
        source = self._source
        assert isinstance(store, RequestStore)  # of the reader that runs us
        for token in source.tokens:
            token.resolve()  # refused at the start rather than at the first request
        tls = tls_context(source.certificate, source.private_key) if source.certificate and source.private_key else None
        reader = BodyReader(self._decoder, source.max_depth)
        handler = WebhookHandler(source, reader, store, self._count, CLOCK)
        made = self._resources.get(
            self._uid, lambda: WebhookServer(source.host, source.port, source.connections, CLOCK)
        )
        server = cast("WebhookServer", made)
        server.attach(handler, tls)
        self._detach = lambda: server.detach(handler)
        self._stopped.wait()
        self._detach()

    def on_stop(self) -> None:
        """Answer 503 from now on."""
        self._detach()
        self._stopped.set()


# ---- the source ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that clients send by POST as JSON. A 200 says that they are in the job's log: they are read exactly once.

    A body is JSON lines, an array, or one object. It is stored whole or not at all, up to its bad records: those that
    do not have the declared columns' types. They are counted (``bad_records``) and left out; with ``with_bad`` they
    come as rows, with the reason in ``_bad STRING`` and their text in ``_corrupt_record STRING``. Fields that are not
    declared are ignored.

    A client that got no answer sends its request again with the same ``Idempotency-Key``: its rows are stored once.

    On this machine's own addresses, requests of web pages are refused. Elsewhere tokens and a certificate are needed,
    or a proxy that encrypts and knows its clients. Needs ``pip install 'penstock[http]'``.

    Args:
        port: to listen at.
        schema: the columns, as DDL or a ``StructType``.
        host: the address to listen at, ``0.0.0.0`` for all.
        path: the only path that is answered.
        tokens: references to secrets, such as ``ps.http.env("WEBHOOK_TOKEN")``: each request has to bear one of them.
            Give two while clients change from one to the other. A file is read again at each request.
        certificate: a file in PEM, for TLS.
        private_key: likewise.
        behind_proxy: a proxy before it encrypts, and lets only those in who may send.
        with_bad: add the columns ``_bad`` and ``_corrupt_record``, and rows of bad records.
        max_rows_per_second: more are refused for a while, with 429.
        key_horizon: how long a key is known.
        max_keys: requests with other keys are refused while so many are known, with 429.
        max_body_bytes: most bytes of a body, also when it is decompressed.
        max_header_bytes: most bytes of a request's head.
        max_depth: most levels of a record.
        max_connections: most connections at a time.
        request_timeout: a request has to be there so long after its first byte.
        block_interval_ms: how long rows collect before they are written to the log, and so about how long an answer
            takes at most. It is a tenth of that if the job waits for rows.
        max_backlog_rows: requests are refused while so many rows are not read yet, with 429.
        max_backlog_bytes: or so many bytes.

    Raises:
        GraphError: an argument is impossible, or the address is open to others without a token and TLS.

    >>> Source(8080, schema="id LONG, name STRING").describe()
    'webhook http://127.0.0.1:8080/'
    """

    port: int
    columns: str | StructType
    host: str
    path: str
    tokens: tuple[SecretRef, ...]
    certificate: str | None
    private_key: str | None
    behind_proxy: bool
    with_bad: bool
    max_rows_per_second: int | None
    keys: KeyLimits
    max_body_bytes: int
    max_depth: int
    connections: ConnectionLimits
    limits: BlockLimits

    def __init__(  # noqa: PLR0913 - options of one server, each by its name
        self,
        port: int,
        *,
        schema: str | StructType,
        host: str = "127.0.0.1",
        path: str = "/",
        tokens: SecretRef | Sequence[SecretRef] = (),
        certificate: str | os.PathLike[str] | None = None,
        private_key: str | os.PathLike[str] | None = None,
        behind_proxy: bool = False,
        with_bad: bool = False,
        max_rows_per_second: int | None = None,
        key_horizon: str = "24 hours",
        max_keys: int = 1_000_000,
        max_body_bytes: int = 8 * 1024 * 1024,
        max_header_bytes: int = 16 * 1024,
        max_depth: int = 32,
        max_connections: int = 256,
        request_timeout: str = "30 seconds",
        block_interval_ms: int = 200,
        max_backlog_rows: int = 10_000_000,
        max_backlog_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        least = {
            "max_rows_per_second": max_rows_per_second,
            "max_keys": max_keys,
            "max_body_bytes": max_body_bytes,
            "max_header_bytes": max_header_bytes,
            "max_depth": max_depth,
            "max_connections": max_connections,
        }
        for name, value in least.items():
            check_limit(name, value)
        references = _references(tokens)
        self._check_address(host, port, path)
        self._check_open(host, references, certificate, private_key, behind_proxy=behind_proxy)
        values = {
            "port": port,
            "columns": schema,
            "host": host,
            "path": path,
            "tokens": references,
            "certificate": None if certificate is None else os.fspath(certificate),
            "private_key": None if private_key is None else os.fspath(private_key),
            "behind_proxy": behind_proxy,
            "with_bad": with_bad,
            "max_rows_per_second": max_rows_per_second,
            "keys": KeyLimits(horizon=parse_duration("key_horizon", key_horizon, least=1), most=max_keys),
            "max_body_bytes": max_body_bytes,
            "max_depth": max_depth,
            "connections": ConnectionLimits(
                header_bytes=max_header_bytes,
                body_bytes=max_body_bytes,
                connections=max_connections,
                request_ms=parse_duration("request_timeout", request_timeout, least=1_000) // 1_000,
            ),
            "limits": block_limits(
                block_interval_ms=block_interval_ms,
                block_bytes=BlockLimits().bytes,
                max_backlog_rows=max_backlog_rows,
                max_backlog_bytes=max_backlog_bytes,
            ),
        }
        for name, given in values.items():
            object.__setattr__(self, name, given)

    @staticmethod
    def _check_address(host: str, port: int, path: str) -> None:
        if not isinstance(port, int) or not 0 < port < 1 << 16:
            msg = f"port={port!r} is not possible. Give a number from 1 to 65535."
            raise GraphError(msg)
        if not host or "/" in host:
            msg = f"host={host!r} is not possible. Give an address of this machine, such as '127.0.0.1' or '0.0.0.0'."
            raise GraphError(msg)
        if not re.fullmatch(r"/[\x21-\x7e]*", path) or "?" in path or "#" in path:
            msg = f"path={path!r} is not possible. Give one that begins with '/', without spaces and without a query."
            raise GraphError(msg)

    @staticmethod
    def _check_open(
        host: str, tokens: tuple[SecretRef, ...], certificate: object, private_key: object, *, behind_proxy: bool
    ) -> None:
        if (certificate is None) != (private_key is None):
            msg = "The arguments certificate and private_key belong together. Give both, each as a file in PEM."
            raise GraphError(msg)
        if not is_loopback(host) and not behind_proxy and (not tokens or certificate is None):
            msg = (
                f"host={host!r} can be reached from other machines. Give tokens=[ps.http.env('WEBHOOK_TOKEN')] with "
                "certificate and private_key, or behind_proxy=True if a proxy encrypts and knows its clients."
            )
            raise GraphError(msg)

    @property
    def guarantee(self) -> Guarantee:
        """A position is replayed from the log."""
        return Guarantee.EXACTLY_ONCE

    def replayed(self, end: Position | None) -> Source:  # noqa: ARG002 - all blocks of a copy are read
        """The same source: a run until caught up receives nothing, and reads the blocks of its state to their end."""
        return self

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return RECEIVED

    def rules(self) -> AdmissionRules:
        """Which requests are taken."""
        return AdmissionRules(
            path=self.path,
            port=self.port,
            checks_browsers=is_loopback(self.host) and not self.behind_proxy,
            tokens=self.tokens,
            max_body_bytes=self.max_body_bytes,
        )

    def schema(self, spark: SparkSession) -> StructType:
        """The declared columns, with those of bad records if asked for."""
        from penstock.formats.text import struct_type

        return self._with_bad(struct_type(spark, self.columns))

    def _with_bad(self, columns: StructType) -> StructType:
        from pyspark.sql.types import StringType

        if not self.with_bad:
            return columns
        taken = sorted({"_bad", "_corrupt_record"} & {name.lower() for name in columns.names})
        if taken:
            msg = f"Column {taken[0]!r} is declared, and with_bad adds one of that name. Give it another name."
            raise GraphError(msg)
        return type(columns)([*columns.fields]).add("_bad", StringType()).add("_corrupt_record", StringType())

    def open(self, context: SourceContext, resume: Position | None) -> ReceiverReader:
        """A reader that goes on after ``resume``.

        Raises:
            GraphError: there is no job whose state directory could keep the rows; or a column's type is none of JSON.
            StateIncompatible: the position is of another kind, or belongs to other blocks.
            CheckpointUnreadable: a block is missing.
        """
        from penstock.formats.json_arrow import decoder_of
        from penstock.formats.text import struct_type

        columns = struct_type(context.spark, self.columns)
        decoder = decoder_of(columns)
        if decoder is None:
            msg = (
                "A column of the webhook has a type that JSON is not decoded to here, such as MAP or VARIANT. Declare "
                "it as STRING, STRUCT or ARRAY."
            )
            raise GraphError(msg, uid=context.uid)

        receiver = WebhookReceiver(self, context.uid, decoder.in_zone("UTC"), context.resources, context.count)
        return ReceiverReader(context, receiver, self._with_bad(columns), self.limits, resume, keys=self.keys)

    def describe(self) -> str:
        """The address, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"webhook {'http' if self.certificate is None else 'https'}://{host}:{self.port}{self.path}"


def _references(tokens: SecretRef | Sequence[SecretRef]) -> tuple[SecretRef, ...]:
    given: object = tokens
    found = (given,) if isinstance(given, EnvironmentSecret | FileSecret | str) else tuple(tokens)  # type: ignore[arg-type]
    if not all(isinstance(each, EnvironmentSecret | FileSecret) for each in found):
        # It is not shown: it is the secret itself.
        msg = "A token must not be written into a pipeline. Refer to it, as in tokens=[ps.http.env('WEBHOOK_TOKEN')]."
        raise GraphError(msg)
    if len(found) > _MOST_TOKENS:
        msg = f"There are {len(found)} tokens. Give one, or two while clients change from one to the other."
        raise GraphError(msg)
    return cast("tuple[SecretRef, ...]", found)
