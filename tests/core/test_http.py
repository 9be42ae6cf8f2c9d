"""The webhook: what is acknowledged, keys that come twice, limits that push back, restarts within the driver."""

import gzip
import re
import ssl
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme
from pyspark.sql.types import StringType, StructType

from core.http_kit import JSON, LINES, PATIENCE, SCHEMA, Hook
from penstock.connectors.receivers.http import Source, env, file
from penstock.errors import ConnectorError, GenerationFenced, GraphError, SourceUnavailable, StorageFailed
from penstock.filesystem.local import LocalFileSystem
from penstock.interfaces.source import CaughtUp, Until


@pytest.fixture
def made():
    hooks = []

    def make(filesystem=None, **options):
        hooks.append(Hook(filesystem, **options))
        return hooks[-1]

    yield make
    for hook in hooks:
        hook.close()


@pytest.fixture
def hook(made):
    hook = made()
    hook.start()
    return hook


def ask_until_it_fails(hook):
    for _ in range(1_000_000):
        hook.poll()


# ------------------------------------------------------------------------------------------------------- what is taken


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b'{"id": 1, "name": "a"}\n{"id": 2}\n', LINES, [(1, "a"), (2, None)]),
        (b'\r\n{"id": 1}\r\n\r\n{"id": 2}', LINES, [(1, None), (2, None)]),
        (b'{"id": 1, "name": "a"}\n{"id": 2}\n', JSON, [(1, "a"), (2, None)]),
        (b'[{"id": 1, "name": "a"}, {"id": 2, "more": {"x": [1]}}]', JSON, [(1, "a"), (2, None)]),
        (b'{"id": 1,\n "name": "a"}', JSON, [(1, "a")]),
        ('{"id": 1, "name": "ü"}'.encode(), "Application/JSON; charset=utf-8", [(1, "ü")]),
        (b"[]", JSON, []),
        (b"", LINES, []),
        (b'{"id": 1, "name": "' + b"x" * 100_000 + b'"}', LINES, [(1, "x" * 100_000)]),
    ],
)
def test_lines_an_array_or_one_object_are_rows(hook, body, kind, expected):
    status, document, _ = hook.post(body, kind)

    assert (status, document) == (200, {"rows": len(expected), "bad": 0})
    assert len(hook.filesystem.list("wal")) == bool(expected)
    assert hook.read() == expected


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)])
def test_a_body_may_be_compressed(hook, name, pack):
    assert hook.post(pack(b'[{"id": 1}]'), Content_Encoding=name)[0] == 200
    assert hook.read() == [(1, None)]


BAD = [
    (b'{"id": "one"}', "id is not a whole number"),
    (b'{"id": 1.5}', "id is not a whole number"),
    (b'{"id": true}', "id is not a whole number"),
    (b'{"id": 1', "delimiter"),
    (b"[1]", "it is not an object"),
    (b"7", "it is not an object"),
    (b"null", "it is not an object"),
    (b'{"id": NaN}', "NaN is no JSON"),
    (b'{"id": ' + b"9" * 500 + b"}", "400 digits"),
    (b'{"id": 99999999999999999999}', "int|large|big|range|convert"),
    (b'{"name": 5}', "name is not a text"),
    (b'{"name": "\xff"}', "utf-8"),
    (b'{"more": ' + b"[" * 40 + b"]" * 40 + b"}", "more than 32 levels"),
]


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_bad_records_come_with_their_text_and_the_reason(made, record, reason):
    hook = made(with_bad=True)
    hook.start()

    assert hook.post(b'{"id": 1}\n' + record + b'\n{"id": 2}', LINES)[1] == {"rows": 2, "bad": 1}

    *good, bad = hook.read()

    assert good == [(1, None, None, None), (2, None, None, None)]
    assert bad[:2] == (None, None)
    assert bad[3] == record.decode("utf-8", "replace")
    assert re.search(reason, bad[2]), bad[2]
    assert hook.counted("bad_records") == 1


def test_bad_records_of_an_array_are_found_one_by_one(made):
    hook = made(with_bad=True)
    hook.start()

    assert hook.post([{"id": 1}, 7, {"id": "x"}, {"id": 2}])[1] == {"rows": 2, "bad": 2}
    assert [(row[0], row[3]) for row in hook.read()] == [(1, None), (2, None), (None, "7"), (None, '{"id": "x"}')]


def test_without_with_bad_they_are_left_out(hook):
    assert hook.post([{"id": 1}, 7])[1] == {"rows": 1, "bad": 1}
    assert hook.post([7])[1] == {"rows": 0, "bad": 1}
    assert hook.read() == [(1, None)]
    assert hook.counted("bad_records") == 2


@pytest.mark.parametrize("body", [b'[{"id": 1}, {"id"', b"id=1", b'"text', b"\xff\xfe"])
def test_a_body_that_is_no_json_is_refused_whole(hook, body):
    status, document, _ = hook.post(body)

    assert status == 400
    assert "not JSON" in document["error"]
    assert hook.filesystem.list("wal") == []
    assert hook.counted("refused_requests") == 1


# ------------------------------------------------------------------------------------------------------- acknowledging


def test_requests_that_wait_at_the_same_moment_share_a_block(made):
    hook = made(block_interval_ms=300)
    hook.start()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda number: hook.post({"id": number}), range(8)))

    assert {answer[0] for answer in answers} == {200}
    assert len(hook.filesystem.list("wal")) < 8
    assert sorted(row[0] for row in hook.read()) == list(range(8))


def test_a_connection_takes_one_request_after_another(hook):
    connection = hook.connection()
    for id in range(3):
        assert hook.send(connection, {"id": id})[0] == 200
    connection.close()

    assert [row[0] for row in hook.read()] == [0, 1, 2]


def test_a_write_that_fails_is_answered_503_and_the_job_begins_again(hook):
    hook.filesystem.lose_answer("create", path="wal/*")

    status, _, headers = hook.post({"id": 1}, Idempotency_Key="a")

    assert (status, headers["Retry-After"]) == (503, "1")
    with pytest.raises(StorageFailed):
        hook.poll()
    hook.reader.close()
    assert hook.post({"id": 1}, Idempotency_Key="a")[0] == 503  # nobody receives, the socket is still there
    early = hook.start()
    assert hook.post({"id": 1}, Idempotency_Key="a")[2]["Idempotency-Replayed"] == "true"
    assert early + hook.read() == [(1, None)]


def test_G5_a_fenced_job_acknowledges_nothing(hook):
    first = hook.reader
    hook.open(until=Until.CAUGHT_UP)

    assert hook.post({"id": 1})[0] == 503
    hook.reader = first
    with pytest.raises(GenerationFenced):
        hook.poll()


def test_what_is_kept_is_read_without_receiving(hook):
    hook.post({"id": 1})
    hook.reader.close()
    hook.resources.close()
    hook.open(until=Until.CAUGHT_UP)

    assert hook.read() == [(1, None)]
    assert isinstance(hook.poll(), CaughtUp)
    with pytest.raises(ConnectionError):
        hook.post({"id": 2})


def test_a_port_that_is_taken_fails_the_source(made, hook):
    other = made()
    other.port = hook.port
    other.open()

    with pytest.raises(SourceUnavailable, match="cannot be listened at"):
        ask_until_it_fails(other)


def test_files_are_for_this_user_alone(made, tmp_path):
    hook = made(LocalFileSystem(tmp_path / "state"))
    hook.start()
    hook.post({"id": 1}, Idempotency_Key="a")
    hook.read()
    hook.checkpoint(1)

    for path in (tmp_path / "state" / "wal").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    assert next((tmp_path / "state" / "wal").rglob("*.keys"))


# ---------------------------------------------------------------------------------------------------------------- keys


def test_a_request_with_a_key_is_stored_once(hook):
    first = hook.post([{"id": 1}, {"id": 2}, 7], Idempotency_Key="a")
    again = hook.post([{"id": 1}, {"id": 2}, 7], Idempotency_Key="a")

    assert first[:2] == again[:2] == (200, {"rows": 2, "bad": 1})
    assert "Idempotency-Replayed" not in first[2]
    assert again[2]["Idempotency-Replayed"] == "true"
    assert hook.read() == [(1, None), (2, None)]


def test_a_key_with_another_body_is_refused(hook):
    hook.post({"id": 1}, Idempotency_Key="a")

    assert hook.post({"id": 2}, Idempotency_Key="a")[0] == 422
    assert hook.post({"id": 2}, Idempotency_Key="b")[0] == 200
    assert hook.read() == [(1, None), (2, None)]


def test_a_second_request_waits_for_the_first_with_its_key(made):
    hook = made(block_interval_ms=200)
    hook.start()
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda _: hook.post({"id": 1}, Idempotency_Key="a"), range(6)))

    assert [answer[:2] for answer in answers] == [(200, {"rows": 1, "bad": 0})] * 6
    assert sum("Idempotency-Replayed" in answer[2] for answer in answers) == 5
    assert hook.read() == [(1, None)]


def test_keys_are_known_after_a_restart_a_rewind_and_the_deletion_of_their_blocks(hook):
    for number in (1, 2, 3):
        hook.post({"id": number}, Idempotency_Key=f"key-{number}")
        hook.read()
        hook.checkpoint(number, retained=1)
    assert sum(path.endswith(".block") for path in hook.filesystem.list("wal")) == 1  # the last
    hook.reader.close()

    hook.start(hook.reader.position())
    for number in (1, 2, 3):
        assert hook.post({"id": number}, Idempotency_Key=f"key-{number}")[2]["Idempotency-Replayed"] == "true"
        assert hook.post({"id": 0}, Idempotency_Key=f"key-{number}")[0] == 422
    assert hook.read() == []


def test_a_rewind_reads_rows_again_and_their_keys_stay(hook):
    start = hook.reader.position()
    hook.post({"id": 1}, Idempotency_Key="a")
    hook.read()
    hook.reader.close()

    assert hook.start(start) == [(1, None)]
    assert hook.post({"id": 1}, Idempotency_Key="a")[2]["Idempotency-Replayed"] == "true"
    assert hook.read() == []


def test_a_key_is_forgotten_when_its_horizon_ends(made):
    hook = made(key_horizon="1 microsecond")
    hook.start()
    hook.post({"id": 1}, Idempotency_Key="a")

    assert "Idempotency-Replayed" not in hook.post({"id": 2}, Idempotency_Key="a")[2]
    assert hook.read() == [(1, None), (2, None)]


def test_keys_are_bounded_in_number_and_length(made):
    hook = made(max_keys=2)
    hook.start()
    hook.post({"id": 1}, Idempotency_Key="a")
    hook.post({"id": 2}, Idempotency_Key="b")

    status, _, headers = hook.post({"id": 3}, Idempotency_Key="c")
    assert (status, headers["Retry-After"]) == (429, "60")
    assert hook.post({"id": 1}, Idempotency_Key="a")[0] == 200
    assert hook.post({"id": 3})[0] == 200
    for key in ("x" * 256, "two words", "", "\xfc"):
        assert hook.post({"id": 3}, Idempotency_Key=key)[0] == 400
    assert hook.post({"id": 1}, Idempotency_Key="a")[0] == 200


# ------------------------------------------------------------------------------------------------------- pushing back


def test_a_backlog_is_answered_429_until_it_is_read(made):
    hook = made(max_backlog_rows=2)
    hook.start()
    hook.post([{"id": 1}, {"id": 2}, {"id": 3}])

    status, _, headers = hook.post({"id": 4})
    assert (status, headers["Retry-After"]) == (429, "1")
    assert [row[0] for row in hook.read()] == [1, 2, 3]
    assert hook.post({"id": 4})[0] == 200


def test_more_rows_than_a_user_allows_are_answered_429(made):
    hook = made(max_rows_per_second=10)
    hook.start()
    assert hook.post([{"id": id} for id in range(600)])[0] == 200

    status, _, headers = hook.post({"id": 1})

    assert status == 429
    assert 50 <= int(headers["Retry-After"]) <= 60
    assert hook.counted("refused_requests") == 1


def test_older_rows_are_read_before_new_ones_are_taken(hook):
    hook.post({"id": 1})
    hook.reader.close()
    hook.open()
    hook.poll(rows=0)

    hook.wait_until(lambda: hook.handler is not None)
    status, _, headers = hook.post({"id": 2})
    assert (status, headers["Retry-After"]) == (503, "1")
    assert hook.read() == [(1, None)]
    assert hook.post({"id": 2})[0] == 200


def test_the_socket_listens_while_the_job_restarts(hook):
    hook.reader.close()
    status, _, headers = hook.post({"id": 1})
    assert (status, headers["Retry-After"]) == (503, "1")

    hook.start()
    assert hook.post({"id": 1})[0] == 200

    hook.reader.close()
    hook.resources.close()
    with pytest.raises(ConnectionError):
        hook.post({"id": 1})


def test_a_stop_writes_and_answers_what_it_took(made):
    hook = made(block_interval_ms=3_600_000)
    hook.start()
    answers = []
    client = threading.Thread(target=lambda: answers.append(hook.post({"id": 1})))
    client.start()
    hook.wait_until(lambda: hook.reader._writer.backlog[0] == 1)
    hook.reader.close()
    client.join(PATIENCE)

    assert answers[0][0] == 200
    hook.open(until=Until.CAUGHT_UP)
    assert hook.read() == [(1, None)]


# ------------------------------------------------------------------------------------------------------ tokens and TLS


def test_a_token_is_asked_for_and_two_are_valid_meanwhile(made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOOK_TOKEN", "first-secret")
    (tmp_path / "token").write_text("second-secret\n")
    hook = made(tokens=[env("HOOK_TOKEN"), file(tmp_path / "token")])
    hook.start()

    assert hook.post({"id": 1})[0] == 401
    assert hook.post({"id": 1}, Authorization="Bearer wrong")[0] == 401
    assert hook.post({"id": 1}, Authorization="Basic first-secret")[0] == 401
    assert hook.post({"id": 1}, Authorization="Bearer first-secret")[0] == 200
    assert hook.post({"id": 2}, Authorization="bearer second-secret")[0] == 200
    (tmp_path / "token").write_text("third-secret")
    assert hook.post({"id": 3}, Authorization="Bearer second-secret")[0] == 401
    assert hook.post({"id": 3}, Authorization="Bearer third-secret")[0] == 200
    assert hook.counted("refused_requests") == 4
    (tmp_path / "token").unlink()
    assert hook.post({"id": 3}, Authorization="Bearer third-secret")[0] == 503


def test_a_token_that_is_not_there_fails_the_start(made, monkeypatch):
    monkeypatch.delenv("HOOK_TOKEN", raising=False)
    hook = made(tokens=env("HOOK_TOKEN"))
    hook.open()

    with pytest.raises(ConnectorError, match="HOOK_TOKEN is not set"):
        ask_until_it_fails(hook)


def test_connections_are_encrypted(made, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    hook = made(certificate=tmp_path / "certificate.pem", private_key=tmp_path / "key.pem")
    hook.start()

    assert hook.post({"id": 1}, tls=trusting)[0] == 200
    with pytest.raises(ssl.SSLError):
        hook.post({"id": 2}, tls=ssl.create_default_context())  # knows no such authority
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(old)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):  # noqa: PT011 - as OpenSSL is built
        hook.post({"id": 3}, tls=old)
    hook.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    hook.wait_until(lambda: hook.counted("refused_requests") >= 3)
    assert hook.post({"id": 4}, tls=trusting)[0] == 200
    assert [row[0] for row in hook.read()] == [1, 4]


def test_a_certificate_that_is_none_fails_the_start_without_showing_it(made, tmp_path):
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nplanted-secret\n")
    hook = made(certificate=tmp_path / "key.pem", private_key=tmp_path / "key.pem")
    hook.open()

    with pytest.raises(ConnectorError, match="cannot be used") as raised:
        ask_until_it_fails(hook)
    assert "planted" not in raised.value.full_traceback()


# -------------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 0}, "port=0"),
        ({"host": "http://x/"}, "host="),
        ({"path": "hook"}, "begins with '/'"),
        ({"path": "/?a=1"}, "without a query"),
        ({"host": "0.0.0.0"}, "can be reached from other machines"),
        ({"host": "0.0.0.0", "tokens": env("T")}, "can be reached from other machines"),
        ({"host": "example.org", "certificate": "c", "private_key": "k"}, "can be reached from other machines"),
        ({"certificate": "c"}, "belong together"),
        ({"tokens": "planted-secret"}, "must not be written into a pipeline"),
        ({"tokens": [env("A"), env("B"), env("C")]}, "There are 3 tokens"),
        ({"max_keys": 0}, "max_keys=0"),
        ({"max_depth": 1.5}, "max_depth=1.5"),
        ({"max_rows_per_second": 0}, "max_rows_per_second=0"),
        ({"key_horizon": "soon"}, "key_horizon 'soon'"),
        ({"request_timeout": "0 s"}, "too short"),
        ({"block_interval_ms": -1}, "block_interval_ms=-1"),
    ],
)
def test_an_impossible_argument_is_refused(options, message):
    with pytest.raises(GraphError, match=message) as raised:
        Source(**{"port": 8080, "schema": SCHEMA, **options})
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0", "behind_proxy": True},
        {"host": "0.0.0.0", "tokens": env("T"), "certificate": "c", "private_key": "k"},
        {"host": "::1"},
    ],
)
def test_an_address_is_open_to_others_only_with_a_token_and_tls_or_behind_a_proxy(options):
    source = Source(8080, schema=SCHEMA, **options)

    assert source.describe().startswith("webhook http")
    assert source.rules().checks_browsers == (options["host"] == "::1")


def test_columns_of_bad_records_must_be_free():
    source = Source(8080, schema=StructType().add("_BAD", StringType()), with_bad=True)

    with pytest.raises(GraphError, match="with_bad adds one of that name"):
        source.schema(None)
