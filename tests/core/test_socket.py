"""Text from a socket: records, time-outs, connections that break; with real sockets on the loopback (rows L3 to L7)."""

import socket
import struct
import threading

import pytest

from core.receivers_kit import PATIENCE, Server
from penstock.connectors.receivers.socket import RecordSplitter, SocketReceiver, Source
from penstock.errors import GraphError, SourceUnavailable


class Kept:
    """A store that keeps rows, and tells when there are enough."""

    def __init__(self):
        self.rows = []
        self._changed = threading.Condition()

    def store(self, rows):
        with self._changed:
            self.rows += rows
            self._changed.notify_all()

    store_reliably = store

    def wait_for(self, *rows):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.rows) >= len(rows), PATIENCE), self.rows
        assert self.rows == list(rows)


class Running:
    """A receiver on a thread."""

    def __init__(self, port, **options):
        options = {"retry_delay_ms": 0, **options}
        self.bad = []
        self.kept = Kept()
        self.error = None
        self.receiver = SocketReceiver(Source("127.0.0.1", port, **options), lambda _name, bad: self.bad.append(bad))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self.receiver.on_start(self.kept)
        except SourceUnavailable as error:
            self.error = error

    def ended(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.kept.rows

    def stop(self):
        self.receiver.on_stop()
        return self.ended()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


# ------------------------------------------------------------------------------------------------------------ records


@pytest.mark.mission("L3")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8_191, 8_192, 8_193, 100_000])
@pytest.mark.parametrize("delimiter", ["\n", "||", "<end>"])
def test_records_are_the_same_however_the_bytes_arrive(size, delimiter):
    texts = ["one", "", "x" * 8_190, "|x", "<end", "ünï", ""]
    data = "".join(text + delimiter for text in texts).encode()
    splitter = RecordSplitter(delimiter, "utf-8", 1 << 20)

    found = [record for at in range(0, len(data), size) for record in splitter.feed(data[at : at + size])]

    assert found == [(text, None) for text in texts]
    assert list(splitter.end(None)) == []


@pytest.mark.mission("L3")
@pytest.mark.parametrize(("delimiter", "expected"), [("\n", ["a", "b\r"]), (";", ["a\r", "b\r\r"])])
def test_a_carriage_return_goes_only_before_a_newline(delimiter, expected):
    splitter = RecordSplitter(delimiter, "utf-8", 100)

    assert [text for text, _ in splitter.feed(f"a\r{delimiter}b\r\r{delimiter}".encode())] == expected


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_record_that_is_too_long_is_cut_and_bad_and_the_next_is_read(size):
    data = b"x" * 50 + b"||ok||" + b"y" * 10 + b"||" + b"z" * 11
    splitter = RecordSplitter("||", "utf-8", 10)

    found = [record for at in range(0, len(data), size) for record in splitter.feed(data[at : at + size])]

    assert found == [("x" * 10, "longer than 10 bytes"), ("ok", None), ("y" * 10, None)]
    assert list(splitter.end("unfinished: reset")) == [("z" * 10, "longer than 10 bytes")]


def test_a_record_that_is_too_long_takes_no_more_memory_than_it_may():
    splitter = RecordSplitter("\n", "utf-8", 10)
    for _ in range(100):
        assert list(splitter.feed(b"x" * 1_000)) == []

    assert len(splitter._buffer) <= 1_000 + 20


def test_what_is_not_in_the_encoding_is_bad():
    assert list(RecordSplitter("\n", "utf-8", 99).feed(b"\xff\nok\n")) == [
        ("\ufffd", "not utf-8: invalid start byte"),
        ("ok", None),
    ]
    assert list(RecordSplitter("\n", "latin-1", 99).feed(b"\xfc\n")) == [("ü", None)]


# -------------------------------------------------------------------------------------------------------- connections


@pytest.mark.mission("L3", "L6")
def test_an_orderly_end_ends_the_last_record_too(server):
    running = Running(server.port, max_attempts=1)
    server.send(b"one\ntw", b"o\nthree")

    assert running.ended() == [("one",), ("two",), ("three",)]
    assert running.bad == []


@pytest.mark.mission("L6")
def test_unfinished_text_is_not_glued_to_what_the_next_connection_sends(server):
    running = Running(server.port, max_attempts=2)
    server.send(b"one\ntw")
    running.kept.wait_for(("one",), ("tw",))
    server.send(b"o\nthree\n")
    server.send()

    assert running.ended() == [("one",), ("tw",), ("o",), ("three",)]


@pytest.mark.mission("L6")
def test_what_flink_does_would_make_one_record_of_two_connections():
    """The other half of the row: one buffer for all connections, as the described source has it."""
    splitter = RecordSplitter("\n", "utf-8", 100)

    assert list(splitter.feed(b"tw")) + list(splitter.feed(b"o\n")) == [("two", None)]


@pytest.mark.mission("L6")
def test_what_is_unfinished_after_a_reset_is_bad_and_kept(server):
    running = Running(server.port, max_attempts=2, with_bad=True)
    connection = server.accept()
    connection.sendall(b"one\ntw")
    running.kept.wait_for(("one", None))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    server.send(b"three\n")
    server.send()

    first, bad, *rest = running.ended()
    assert (first, rest) == (("one", None), [("three", None)])
    assert bad[0] == "tw"
    assert bad[1].startswith("unfinished: the connection broke")
    assert running.bad == [1]


@pytest.mark.mission("L6")
def test_what_is_unfinished_after_a_time_out_is_bad_and_left_out(server):
    running = Running(server.port, read_timeout_ms=50)
    connection = server.accept()
    connection.sendall(b"one\ntw")
    running.kept.wait_for(("one",))
    again = server.accept()
    again.sendall(b"three\n")
    running.kept.wait_for(("one",), ("three",))

    running.stop()
    assert running.bad == [1]
    connection.close()
    again.close()


@pytest.mark.mission("L4")
def test_an_end_is_followed_by_another_connection_until_the_attempts_are_used_up(server):
    running = Running(server.port, max_attempts=3)
    for _ in range(3):
        server.send()

    assert running.ended() == []
    assert running.error is None


@pytest.mark.mission("L4", "L5")
def test_data_resets_the_attempts(server):
    running = Running(server.port, max_attempts=3)
    for number in range(5):
        server.send()
        server.send(b"%d\n" % number)
    server.send()
    server.send()

    assert running.ended() == [(str(number),) for number in range(5)]


@pytest.mark.mission("L5")
def test_a_refused_connection_is_tried_again(server):
    port = server.port
    server.close()
    running = Running(port, max_attempts=3)

    assert running.ended() == []
    assert str(running.error).startswith(f"socket 127.0.0.1:{port}: it cannot be connected")
    assert "3 times in a row" in str(running.error)


def test_a_server_that_stays_away_fills_no_log(server, caplog):
    port = server.port
    server.close()

    Running(port, max_attempts=40, retry_delay_ms=1).ended()

    said = [each.message for each in caplog.records if "connecting again" in each.message]
    assert len(said) == 6  # after 1, 2, 4, 8, 16 and 32 attempts


@pytest.mark.mission("L5")
def test_a_server_that_comes_late_is_found():
    first = Server()
    port = first.port
    first.close()
    running = Running(port, retry_delay_ms=5)
    late = Server.__new__(Server)
    late._listener = socket.create_server(("127.0.0.1", port))
    late._listener.settimeout(PATIENCE)

    late.send(b"hello\n")
    running.kept.wait_for(("hello",))
    running.stop()
    late.close()


@pytest.mark.mission("L7")
def test_a_stop_closes_the_connection_and_so_frees_the_reader(server):
    running = Running(server.port, with_bad=True)
    connection = server.accept()
    connection.sendall(b"one\ntw")
    running.kept.wait_for(("one", None))

    assert running.stop() == [("one", None), ("tw", "unfinished: the source stopped")]
    assert connection.recv(1) == b""
    connection.close()


def test_a_stop_ends_the_wait_for_the_next_connection(server):
    port = server.port
    server.close()
    running = Running(port, retry_delay_ms=3_600_000)

    assert running.stop() == []


def test_records_come_together_as_they_were_read(server):
    running = Running(server.port, max_attempts=1)
    server.send("".join(f"{n}\n" for n in range(100_000)).encode())

    assert running.ended() == [(str(n),) for n in range(100_000)]


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 0}, "port=0"),
        ({"delimiter": ""}, "delimiter=''"),
        ({"encoding": "utf-16"}, "inside a character"),
        ({"encoding": "shift_jis"}, "inside a character"),
        ({"encoding": "klingon"}, "unknown encoding"),
        ({"encoding": "ascii", "delimiter": "§"}, "encoding='ascii'"),
        ({"max_record_bytes": 0}, "max_record_bytes=0"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"read_timeout_ms": 0}, "read_timeout_ms=0"),
        ({"retry_delay_ms": -1}, "retry_delay_ms=-1"),
        ({"block_interval_ms": -1}, "block_interval_ms=-1"),
        ({"max_backlog_bytes": 0}, "max_backlog_bytes=0"),
    ],
)
def test_an_impossible_argument_is_refused(options, message):
    with pytest.raises(GraphError, match=message):
        Source("localhost", **{"port": 1, **options})
