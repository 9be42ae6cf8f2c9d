"""A hostile corpus against the webhook: each is refused and counted, and the next good request is taken."""

import gzip
import json
import logging
import os
import re
import socket
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.http_kit import LINES, PATIENCE, SCHEMA, Hook, status_of
from penstock.connectors.receivers.http import Source, env
from penstock.connectors.receivers.http_admission import AdmissionRules, RequestHead, RowRate
from penstock.connectors.receivers.http_body import BodyReader, BodyRefused, decompressed, is_deeper
from penstock.formats.json_arrow import JsonDecoder

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
    "half a second gzip": (request("Content-Encoding: gzip", body=gzip.compress(GOOD) + gzip.compress(b" ")[:-9]), 400),
    "a bomb of many gzips": (request("Content-Encoding: gzip", body=20 * gzipped(1_000)), 413),
    "a deflate with more behind it": (request("Content-Encoding: deflate", body=2 * zlib.compress(b"[]")), 400),
    "deep arrays": (request(body=b"[" * 4_000 + b"]" * 4_000), 400),
    "deep objects": (request(body=b'{"a":' * 1_500 + b"1" + b"}" * 1_500), 400),
    "deep without end": (request(body=b'[{"a":' * 1_500), 400),
    "a number of many digits": (request(body=b'[{"id": ' + b"9" * 9_000 + b"}]"), 400),
    "a number with a long exponent": (request(body=b'[{"id": 1}, {"id": 1e' + b"9" * 22 + b"}]"), 400),
    "a number with a long negative exponent": (request(body=b'{"more": 1e-' + b"9" * 22 + b"}"), 400),
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


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


@given(st.lists(st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b"a", b"\n"]), max_size=40).map(b"".join))
def test_levels_are_those_outside_of_strings(text):
    outside = _STRING.sub(lambda found: b" " * len(found[0]), text)
    read = outside.partition(b"\\")[0]  # JSON ends at a backslash outside of a string
    levels = [0]
    for bracket in re.findall(rb"[][{}]", read):
        levels.append(levels[-1] + (1 if bracket in b"[{" else -1))

    for most in range(1, 5):
        assert is_deeper(text[: len(read)], most) == (max(levels) > most)
        assert is_deeper(text, most) or max(levels) <= most


@pytest.mark.parametrize("long", [b"x" * 1_000_000, b"\\\\" * 500_000, b'\\"' * 500_000])
def test_levels_of_a_long_string_are_counted_in_little_memory(long):
    text = b'{"a": "' + long + b'", "b": [' + b"[" * 8
    tracemalloc.start()
    assert is_deeper(text, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(text)


# --------------------------------------------------------------------------------------------------- bodies and records


def reader(max_depth=8, **columns):
    return BodyReader(JsonDecoder(pa.struct(columns or {"id": pa.int64()})), max_depth)


@pytest.mark.parametrize("exponent", ["9" * 22, "-" + "9" * 22])
def test_a_long_exponent_is_one_bad_line(exponent):
    for record in (f'{{"id": 1e{exponent}}}', f'{{"more": 0e{exponent}, "id": 7}}'):
        body = reader().read(f'{{"id": 1}}\n{record}\n{{"id": 2}}'.encode(), LINES)

        if body.bad:  # a field that is not declared may be read over
            assert body.bad == ((record, "a number has an exponent that is too large"),)
        assert [row["id"] for row in body.rows.to_pylist()] == [1, *([] if body.bad else [7]), 2]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.decimal128(10, 2)])
@pytest.mark.parametrize("number", ["1e400", "-1e999999", "1e999999999999999999", "1." + "1" * 300 + "e99999999"])
def test_numbers_too_large_for_a_column_are_bad_records(kind, number):
    for body in (f'[{{"n": 1}}, {{"n": {number}}}]', f'{{"n": 1}}\n{{"n": {number}}}'):
        found = reader(n=kind).read(body.encode(), "application/json")

        assert [record for record, _ in found.bad] == [f'{{"n": {number}}}']
        assert found.rows.num_rows == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_bad_records_of_an_array_come_as_they_were_sent(encoding):
    bad = [
        '{"id": 0.123456789012345678}',
        '{"id":1e400 ,\n "name": "\\u00fc ü ], [ \\""}',
        '{"id": "x", "id": "y"}',
        "null",
        '"]"',
        "[ {} ]",
        "-1.50",
    ]
    text = " [" + ", ".join([' {"id": 1}\t', *bad, '{"id": 2}\n']) + " ] "

    found = reader().read(text.strip().encode(encoding), "application/json")

    assert [record for record, _ in found.bad] == bad
    assert found.rows.to_pylist() == [{"id": 1}, {"id": 2}]


def test_a_few_bad_records_of_a_long_array_are_found_in_few_steps(monkeypatch):
    sizes, exactly = [], BodyReader._exactly
    monkeypatch.setattr(BodyReader, "_exactly", lambda self, values: sizes.append(len(values)) or exactly(self, values))
    values = [{"id": number} for number in range(1_000)]
    values[300], values[999] = {"id": 1.5}, 7

    found = reader().read(json.dumps(values).encode(), "application/json")

    assert found.rows["id"].to_pylist() == [number for number in range(1_000) if number not in {300, 999}]
    assert [record for record, _ in found.bad] == ['{"id": 1.5}', "7"]
    assert len(sizes) < 50


def test_a_bad_object_comes_as_it_was_sent():
    sent = '{"id":\n0.123456789012345678, "name": "ü"}'

    assert [record for record, _ in reader().read(f"\n{sent} ".encode(), "application/json").bad] == [sent]


def test_a_bad_record_with_half_a_character_can_be_shown():
    (bad,) = reader().read(b'[{"id": "\xed\xa0\x80"}, {"id": 1}]', "application/json").bad

    assert bad[0] == '{"id": "���"}'


def test_a_record_may_have_as_many_levels_in_each_kind_of_body():
    good, deep = b'{"id": 1, "x": [[]]}', b'{"id": 1, "x": [[[]]]}'

    for body, kind in (
        (good, LINES),
        (good, "application/json"),
        (b"[%b]" % good, "application/json"),
    ):
        assert reader(max_depth=3).read(body, kind).rows.num_rows == 1
    assert reader(max_depth=3).read(deep, LINES).bad == ((deep.decode(), "more than 3 levels"),)
    for body in (deep, b"[%b]" % deep, b"\xef\xbb\xbf" + deep):
        with pytest.raises(BodyRefused, match="more than 3 levels"):
            reader(max_depth=3).read(body, "application/json")


def test_a_gzip_may_have_several_members():
    parts = [b"[1, ", b"", os.urandom(20_000), b"2]"]
    body, text = b"".join(map(gzip.compress, parts)), b"".join(parts)

    assert decompressed(body, "gzip", len(text)) == text
    with pytest.raises(BodyRefused, match="more than"):
        decompressed(body, "gzip", len(text) - 1)


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
