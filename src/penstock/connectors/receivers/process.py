"""A receiver in a process of its own. Rows come over a socket as Arrow streams, and are never pickled.

A frame is a kind, a number and the length of what follows. The child sends rows, the end, or why it failed. The parent
answers those that are to be durable, by their number, and asks the child to stop. Either side sees the other die as
the end of the socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from penstock.connectors.receivers.rows import Receiver, RowStore, Store, TableWriter
from penstock.errors import PenstockError, SourceUnavailable, sentence

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("penstock")

_HEADER: Final = struct.Struct("<cQQ")
_STORE: Final = b"s"  # rows; no answer
_STORE_RELIABLY: Final = b"r"  # rows; answered when they are durable
_DURABLE: Final = b"d"  # the answer
_REFUSED: Final = b"n"  # or why not
_ENDED: Final = b"e"  # on_start has returned
_FAILED: Final = b"f"  # on_start has raised
_STOP: Final = b"t"  # call on_stop
_BEGIN: Final = b"b"  # the receiver, and then the schema: the first two frames

_WAITING_CALLERS: Final = 64
"""Calls of ``store_reliably`` whose rows can be in one block."""
_STOP_SECONDS: Final = 4.0
"""How long a child may take to stop before it is killed."""  # less than a stop of the source waits
_CHILD: Final = "from penstock.connectors.receivers.process import run_child; run_child()"


class FrameSocket:
    """Frames over a socket. Several threads may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: bytes, number: int = 0, data: bytes = b"") -> None:
        """Send a frame; waits while the other side takes none.

        Raises:
            OSError: the other side is gone.
        """
        with self._sending:
            self._connection.sendall(_HEADER.pack(kind, number, len(data)))
            self._connection.sendall(data)

    def receive(self) -> tuple[bytes, int, bytes] | None:
        """The next frame; ``None`` if the other side is gone."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        kind, number, length = _HEADER.unpack(header)
        data = self._read(length)
        return None if data is None else (kind, number, data)

    def _read(self, length: int) -> bytes | None:
        into = bytearray(length)
        view, done = memoryview(into), 0
        while done < length:
            try:
                count = self._connection.recv_into(view[done:])
            except OSError:
                return None
            if count == 0:
                return None
            done += count
        return bytes(into)

    def close(self) -> None:
        """Close the socket; the other side sees the end."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


# ---- the driver's side -----------------------------------------------------------------------------------------------


class ChildProcess(Receiver):
    """Runs another receiver in a child process. The child's death fails it, and the job restarts.

    Args:
        receiver: what the child runs; it is pickled once, at the start.
        schema: the declared columns.
    """

    def __init__(self, receiver: Receiver, schema: pa.Schema) -> None:
        self._receiver = receiver
        self._schema = schema
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: FrameSocket | None = None
        self._lock = threading.Lock()
        self._stopping = False

    def on_start(self, store: Store) -> None:
        """Start the child, and store what it sends until it ends.

        Raises:
            SourceUnavailable: the child failed or died.
        """
        channel = self._start()
        if channel is None:
            return
        try:
            last = self._store_all(channel, store)
        finally:
            channel.close()
            code = self._wait()
        if self._stopping or (last is not None and last[0] == _ENDED):
            return
        if last is not None:
            raise SourceUnavailable(last[2].decode())
        msg = f"The process of the receiver ended with exit code {code}. Rows that it had not stored are lost."
        raise SourceUnavailable(msg)

    def _store_all(self, channel: FrameSocket, store: Store) -> tuple[bytes, int, bytes] | None:
        """Store rows until the child says that it has ended or failed; ``None`` if it is gone."""
        with ThreadPoolExecutor(_WAITING_CALLERS, thread_name_prefix="penstock-receiver-process") as callers:
            while (frame := channel.receive()) is not None:
                kind, number, data = frame
                if kind == _STORE:
                    store.store(_table(data))
                elif kind == _STORE_RELIABLY:
                    callers.submit(_store_reliably, store, channel, number, data)
                else:
                    return frame
        return None

    def on_stop(self) -> None:
        """Ask the child to stop; it is killed if it does not."""
        with self._lock:
            self._stopping = True
            child, channel = self._child, self._channel
        if child is None or channel is None:
            return
        with contextlib.suppress(OSError):  # it has ended
            channel.send(_STOP)
        threading.Thread(target=_kill_later, args=(child,), name="penstock-receiver-stop", daemon=True).start()

    def _start(self) -> FrameSocket | None:
        from pyspark import cloudpickle

        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            if self._stopping:
                ours.close()
                return None
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            )
            channel = self._channel = FrameSocket(ours)
        channel.send(_BEGIN, data=cloudpickle.dumps(self._receiver))  # type: ignore[no-untyped-call]
        channel.send(_BEGIN, data=self._schema.serialize().to_pybytes())
        return channel

    def _wait(self) -> int:
        assert self._child is not None  # it was started
        try:
            return self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


def _kill_later(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("the receiver's process %d did not stop within %g s and is killed", child.pid, _STOP_SECONDS)
        child.kill()


def _store_reliably(store: Store, channel: FrameSocket, number: int, data: bytes) -> None:
    try:
        store.store_reliably(_table(data))
    except PenstockError as error:
        answer = (_REFUSED, number, str(error).encode())
    except Exception as error:  # whatever it is, the caller in the child is told
        answer = (_REFUSED, number, f"Rows could not be stored: {type(error).__name__}: {sentence(error)}".encode())
    else:
        answer = (_DURABLE, number, b"")
    with contextlib.suppress(OSError):  # the child is gone; its rows are durable all the same
        channel.send(*answer)


def _table(data: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()


# ---- the child's side ------------------------------------------------------------------------------------------------


class _SocketWriter(TableWriter):
    """Takes tables as a ``BlockWriter`` does, and sends them to the parent."""

    def __init__(self, channel: FrameSocket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._next = 0
        self._waiting: dict[int, threading.Event] = {}
        self._refusals: dict[int, str] = {}

    def add(self, table: pa.Table, *, reliably: bool) -> None:
        """Send rows; with ``reliably`` wait for the answer.

        Raises:
            SourceUnavailable: the rows are not acknowledged, or the parent is gone.
        """
        import pyarrow as pa

        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, table.schema) as stream:
            stream.write_table(table)
        data = into.getvalue().to_pybytes()
        number, answered = 0, threading.Event()
        if reliably:
            with self._lock:
                number = self._next = self._next + 1
                self._waiting[number] = answered
        try:
            self._channel.send(_STORE_RELIABLY if reliably else _STORE, number, data)
        except OSError as error:
            raise SourceUnavailable(_GONE) from error
        if reliably:
            answered.wait()
            refusal = self._refusals.pop(number, None)
            if refusal is not None:
                raise SourceUnavailable(refusal)

    def answer(self, number: int, refusal: str | None) -> None:
        """Free the caller that waits for this answer."""
        with self._lock:
            answered = self._waiting.pop(number)
            if refusal is not None:
                self._refusals[number] = refusal
        answered.set()

    def parent_is_gone(self) -> None:
        """Refuse all that waits."""
        for number in list(self._waiting):
            self.answer(number, _GONE)


_GONE: Final = "The job is gone, and takes no more rows. Send them again when it runs."


def run_child() -> None:
    """Run the receiver that the parent sends, until it ends or the parent is gone."""
    import pickle

    import pyarrow as pa

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent stops in order, and asks us to
    channel = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    first, second = channel.receive(), channel.receive()
    if first is None or second is None:
        return
    # What is unpickled comes from the parent process over a socket that nobody else has.
    receiver: Receiver = pickle.loads(first[2])
    writer = _SocketWriter(channel)
    store = RowStore(pa.ipc.read_schema(pa.py_buffer(second[2])), writer)
    threading.Thread(target=_listen, args=(channel, receiver, writer), name="penstock-parent", daemon=True).start()
    try:
        receiver.on_start(store)
        last = (_ENDED, 0, b"")
    except PenstockError as error:
        last = (_FAILED, 0, str(error).encode())
    except Exception as error:
        last = (_FAILED, 0, f"The receiver failed: {type(error).__name__}: {sentence(error)}".encode())
    with contextlib.suppress(OSError):  # the parent is gone
        channel.send(*last)
    os._exit(0)  # threads of the receiver may go on for ever


def _listen(channel: FrameSocket, receiver: Receiver, writer: _SocketWriter) -> None:
    """Hand out answers; a stop, or the end of the parent, stops the receiver."""
    while (frame := channel.receive()) is not None:
        kind, number, data = frame
        if kind == _STOP:
            _stop(receiver)
        else:
            writer.answer(number, data.decode() if kind == _REFUSED else None)
    writer.parent_is_gone()
    _stop(receiver)
    threading.Event().wait(_STOP_SECONDS)
    os._exit(1)


def _stop(receiver: Receiver) -> None:
    try:
        receiver.on_stop()
    except Exception:
        log.warning("on_stop of the receiver failed", exc_info=True)
