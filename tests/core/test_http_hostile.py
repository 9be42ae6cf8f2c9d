"""A hostile corpus against the webhook: each is refused and counted, and the next good request is taken."""

import gzip
import json
import logging
import os
import socket
import zlib

import pytest

from core.http_kit import LINES, PATIENCE, SCHEMA, Hook, status_of
from penstock.connectors.receivers.http import Source, env
from penstock.connectors.receivers.http_admission import AdmissionRules, RequestHead, RowRate
from penstock.connectors.receivers.http_body import is_deeper

GOOD = b'{"id": 1}'
LIMITS = {"max_body_bytes": 10_000, "max_header_bytes": 2_000, "max_depth": 8, "request_timeout": "300 ms"}


@pytest.fixture
def hook():
    hook = Hook(**LIMITS)
    hook.start()
    yield hook
    hook.close()


def request(*headers, body=GOOD, line="POST / HTTP/1.1", host="localhost", kind="application/json", length=None):
    head = [line, *([f"Host: {host}"] if host is not None else []), *([f"Content-Type: {kind}"] if kind else [])]
    head += [f"Content-Length: {len(body) if length is None else length}"] if length != "" else []
    return "\r\n".join([*head, *headers, "", ""]).encode("latin-1") + body


def gzipped(size):
    return gzip.compress(b" " * size)


HOSTILE = {
    # who asks
    "a page that rebinds a name": (request(host="evil.example"), 421),
    "another port": (request(host="localhost:1"), 421),
    "a name that only begins so": (request(host="localhost.evil.example"), 421),
    "a name in user info": (request(host="localhost@evil.example"), 421),
    "an address of the net": (request(host="10.0.0.1"), 421),
    "no host": (request(host=None), 400),
    "two hosts": (request("Host: evil.example"), 400),
    "an origin": (request("Origin: http://localhost"), 403),
    "a null origin": (request("Origin: null"), 403),
    "a form": (request(kind="application/x-www-form-urlencoded"), 415),
    "plain text, which needs no preflight": (request(kind="text/plain"), 415),
    "a form that ends as JSON": (request(kind="text/plain; application/json"), 415),
    "no type": (request(kind=None), 415),
    "two types": (request("Content-Type: text/plain"), 400),
    "a preflight": (request(line="OPTIONS / HTTP/1.1"), 405),
    # where
    "a traversal": (request(line="POST /../../etc/passwd HTTP/1.1"), 404),
    "a traversal in percent": (request(line="POST /%2e%2e/ HTTP/1.1"), 404),
    "a query": (request(line="POST /?token=guess HTTP/1.1"), 404),
    "an address of another server": (request(line="POST http://evil.example/ HTTP/1.1"), 404),
    "a tunnel": (request(line="CONNECT evil.example:443 HTTP/1.1"), 404),
    "another method": (request(line="DELETE / HTTP/1.1"), 405),
    # heads
    "a head without end": (b"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000, 431),
    "a long header": (request("X: " + "x" * 5_000), 431),
    "many headers": (request(*(f"X-{number}: 1" for number in range(150))), 431),
    "a long path": (request(line="POST /" + "x" * 5_000 + " HTTP/1.1"), 431),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00" + b"\x00" * 600 + b"\r\n\r\n", 400),
    "a folded header": (request("X: a", " b: c"), None),
    "a zero byte": (request("X: a\0b"), 400),
    # smuggled requests
    "two lengths": (request("Content-Length: 5"), 400),
    "a length and chunks": (request("Transfer-Encoding: chunked"), None),
    "an odd coding": (request("Transfer-Encoding: gzip, chunked", length=""), 501),
    "a negative length": (request(length="-1"), 400),
    "a length that is none": (request(length="1e3"), 400),
    "an odd chunk": (request("Transfer-Encoding: chunked", body=b"zz\r\n", length=""), 400),
    # bodies
    "a long length": (request(length=99_999_999_999), 413),
    "a length without end": (request(length="9" * 3_000), (400, 413, 431)),
    "a long body": (request(body=b" " * 20_000), 413),
    "chunks without end": (
        request("Transfer-Encoding: chunked", body=b"1000\r\n" + b" " * 4096 + b"\r\n", length="")
        + 5 * (b"1000\r\n" + b" " * 4096 + b"\r\n"),
        413,
    ),
    "a bomb": (request("Content-Encoding: gzip", body=gzipped(5_000_000)), 413),
    "a bomb in a bomb": (request("Content-Encoding: gzip, gzip", body=gzip.compress(gzipped(5_000_000))), 415),
    "a bomb of deflate": (request("Content-Encoding: deflate", body=zlib.compress(b"0" * 5_000_000)), 413),
    "half a gzip": (request("Content-Encoding: gzip", body=gzip.compress(GOOD)[:-9]), 400),
    "no gzip": (request("Content-Encoding: gzip"), 400),
    "a gzip with more behind it": (request("Content-Encoding: gzip", body=gzip.compress(GOOD) + b"more"), 400),
    "deep arrays": (request(body=b"[" * 4_000 + b"]" * 4_000), 400),
    "deep objects": (request(body=b'{"a":' * 1_500 + b"1" + b"}" * 1_500), 400),
    "deep without end": (request(body=b'[{"a":' * 1_500), 400),
    "a number of many digits": (request(body=b'[{"id": ' + b"9" * 9_000 + b"}]"), 400),
    "a key of many characters": (request("Idempotency-Key: " + "x" * 256), 400),
    "two keys": (request("Idempotency-Key: a", "Idempotency-Key: b"), 400),
}


@pytest.mark.parametrize(("sent", "status"), HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused_and_counted_and_the_job_goes_on(hook, sent, status):
    answer = hook.raw(sent)

    found = status_of(answer)
    if status is None:  # taken as the standard says, or refused; never anything else
        assert found in (200, 400)
    else:
        assert found in (status if isinstance(status, tuple) else (status,)), answer[:300]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Traceback" not in answer
    assert hook.counted("refused_requests") == (found != 200)
    assert hook.post({"id": 7})[0] == 200
    assert [row[0] for row in hook.read()] == [*([1] if found == 200 else []), 7]


def test_a_deep_record_is_a_bad_one(hook):
    assert hook.post(b'{"id": 1}\n{"x": ' + b"[" * 20 + b"]" * 20 + b"}", LINES)[1] == {"rows": 1, "bad": 1}


@pytest.mark.parametrize("sent", [b"POST / HT", request()[:-3], request(length=50)])
def test_a_slow_request_is_ended_in_time(hook, sent):
    with socket.create_connection(("127.0.0.1", hook.port), PATIENCE) as connection:
        connection.sendall(sent)
        answer = connection.recv(65_536)

    assert status_of(answer) == 408
    assert hook.counted("refused_requests") == 1
    assert hook.post({"id": 7})[0] == 200


def test_a_request_that_is_cut_off_is_not_stored(hook):
    hook.raw(request()[:-3])

    assert hook.post({"id": 7})[0] == 200
    assert [row[0] for row in hook.read()] == [7]


def test_connections_that_say_nothing_take_no_more_than_their_places(hook):
    hook.close()
    hook = Hook(max_connections=2, **LIMITS)
    hook.start()
    silent = [socket.create_connection(("127.0.0.1", hook.port), PATIENCE) for _ in range(2)]
    hook.wait_until(lambda: len(hook.resources._open["hook"]._connections) == 2)
    with socket.create_connection(("127.0.0.1", hook.port), PATIENCE) as third:
        assert third.recv(1) == b""
    for connection in silent:
        connection.close()
    hook.wait_until(lambda: not hook.resources._open["hook"]._connections)

    assert hook.post({"id": 7})[0] == 200
    assert hook.counted("refused_requests") == 1
    hook.close()


def test_a_client_that_asks_first_is_answered_before_it_sends(hook):
    with socket.create_connection(("127.0.0.1", hook.port), PATIENCE) as connection:
        connection.sendall(request("Expect: 100-continue", body=b"", length=len(GOOD)))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(GOOD)
        assert status_of(connection.recv(65_536)) == 200
        connection.sendall(request("Expect: 100-continue", "Origin: http://x", body=b"", length=len(GOOD)))
        assert status_of(connection.recv(65_536)) == 403


# -------------------------------------------------------------------------------------------------------------- secrets


def test_tokens_are_guessed_in_vain_and_shown_nowhere(monkeypatch, caplog, tmp_path):
    secret, guess = "planted-secret-9f1c", "guessed-secret-77aa"
    monkeypatch.setenv("HOOK_TOKEN", secret)
    caplog.set_level(logging.DEBUG)
    hook = Hook(tokens=env("HOOK_TOKEN"), **LIMITS)
    hook.start()
    guesses = [guess, secret[:-1], secret + "x", secret.upper(), "", " ", "\xfc", "a" * 1_500]
    answers = [hook.post({"id": 0}, Authorization=f"Bearer {each}") for each in guesses]
    answers.append(hook.post({"id": 0}))
    assert {answer[0] for answer in answers} == {401}
    assert hook.counted("refused_requests") == len(answers)
    assert hook.post({"id": 7}, Authorization=f"Bearer {secret}", Idempotency_Key="k")[0] == 200
    hook.filesystem.lose_answer("create", path="wal/*")
    failed = hook.post({"id": 8}, Authorization=f"Bearer {secret}")
    assert failed[0] == 503

    source = Source(hook.port, **hook.options)
    said = [
        caplog.text,
        repr(source),
        source.describe(),
        repr(source.rules()),
        repr(hook.facts),
        json.dumps([answer[1:] for answer in [*answers, failed]]),
        str(hook.resources._open["hook"]._handler),
        *(content.decode("latin-1") for content in hook.filesystem.files.values()),
    ]
    hook.close()
    for text in said:
        assert secret not in text
        assert guess not in text
    assert os.environ["HOOK_TOKEN"] == secret


# -------------------------------------------------------------------------------------------------- decided by the head


def test_behind_a_proxy_hosts_and_origins_are_its_business():
    rules = AdmissionRules(path="/", port=80, checks_browsers=False, max_body_bytes=100)
    head = [("host", "example.org"), ("origin", "https://example.org"), ("content-type", "application/json")]

    assert rules.refusal(RequestHead("POST", "/", head)) is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80"])
def test_this_machines_own_names_are_taken(host):
    rules = AdmissionRules(path="/", port=80, checks_browsers=True, max_body_bytes=100)

    assert rules.refusal(RequestHead("POST", "/", [("host", host), ("content-type", "application/json")])) is None


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"{}", 1),
        (b'{"a": "[[[[\\"[[[["}', 1),
        (b'[{"a": {"b": []}}, [[[]]]]', 4),
        (b'"[[[["', 0),
        (b"]]]][[", 0),
        (b'{"a": "never ends [[[', 1),
    ],
)
def test_levels_are_counted_without_reading(text, depth):
    assert not is_deeper(text, max(depth, 1))
    assert depth < 2 or is_deeper(text, depth - 1)


def test_a_rate_holds_on_average_and_never_saves_up_more_than_a_second():
    rate, taken, waited = RowRate(100, 0), 0, 0
    for second in range(1_000, 1_100):
        now = second * 1_000_000
        if rate.wait(now):
            waited += 1
        else:
            rate.take(250, now)
            taken += 250
    assert 100 * 100 <= taken <= 100 * 100 + 350
    assert waited > 50


def test_a_schema_is_not_asked_for_by_a_description():
    assert "id" not in Source(8080, schema=SCHEMA).describe()
