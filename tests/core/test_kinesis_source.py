"""The arguments of ``ps.kinesis.Source``, and what is said without reading."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

import penstock as ps
from core.kinesis_kit import Bench
from kinesis_fake import HOUR, refusal
from page_kit import blocks
from penstock.admin.doctor_checks import Status
from penstock.admin.doctor_kinesis import look_at_stream
from penstock.connectors.kinesis.fetch import MAX_THREADS
from penstock.connectors.kinesis.lag import backlog_of
from penstock.connectors.kinesis.reader import BUFFER_BYTES
from penstock.connectors.kinesis.shards import decode
from penstock.errors import GraphError

REFUSED = {
    "stream": ({"stream": "no stream"}, "stream='no stream' is no stream"),
    "region": ({"region": ""}, "region='' is no region"),
    "url": ({"endpoint_url": "http://me:secret@host"}, "endpoint_url is no address"),
    "start": ({"start": "TRIM_HORIZON"}, "Kinesis's TRIM_HORIZON is called 'earliest'"),
    "word": ({"start": "now"}, "start='now' is not a place in a stream"),
    "zone": ({"start": "2026-01-01T00:00:00"}, "has no time zone"),
    "early": ({"start": "1969-01-01T00:00:00Z"}, "is before 1970"),
    "lost": (
        {"on_lost_records": "skip"},
        "on_lost_records='skip' is not possible. It must be one of 'fail', 'continue'",
    ),
    "discover": ({"discover_every": "soon"}, "discover_every 'soon' is not a length of time"),
    "poll": ({"poll_every": "0 seconds"}, "poll_every '0 seconds' is too short"),
    "rows": ({"max_rows_per_batch": 0}, "max_rows_per_batch is 0"),
    "bytes": ({"max_bytes_per_batch": "9"}, "max_bytes_per_batch is '9'"),
    "option": ({"options": {"aws_acess_key_id": "x"}}, "Did you mean 'aws_access_key_id'?"),
    "secret": ({"options": {"aws_secret_access_key": "abc123"}}, re.escape("ps.kinesis.env('KINESIS_SECRET')")),
    "type": ({"options": {"verify": 3}}, "Option 'verify' is a int"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_argument_is_refused_with_the_remedy(arguments, said):
    with pytest.raises(GraphError, match=said) as raised:
        ps.kinesis.Source(**{"stream": "orders", **arguments})
    assert "secret@" not in str(raised.value)
    assert "abc123" not in str(raised.value)


def test_secrets_are_shown_nowhere(monkeypatch):
    monkeypatch.setenv("KINESIS_SECRET", "hush")
    source = ps.kinesis.Source(
        "arn:aws:kinesis:eu-central-1:123456789012:stream/orders",
        region="eu-central-1",
        start=datetime(2026, 1, 1, tzinfo=timezone.utc),
        options={"aws_access_key_id": "me", "aws_secret_access_key": ps.kinesis.env("KINESIS_SECRET")},
    )
    assert "hush" not in repr(source)
    assert source.address.argument == {"StreamARN": "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"}


def test_boto3_gets_the_secrets_and_no_retries_of_its_own(monkeypatch):
    from penstock.connectors.kinesis.client import new_client

    monkeypatch.setenv("KINESIS_SECRET", "hush")
    source = ps.kinesis.Source(
        "orders",
        region="eu-central-1",
        endpoint_url="http://localhost:9",
        options={"aws_access_key_id": "me", "aws_secret_access_key": ps.kinesis.env("KINESIS_SECRET")},
    )
    client = new_client(source.address)
    assert client._request_signer._credentials.secret_key == "hush"
    assert client.meta.endpoint_url == "http://localhost:9"
    assert client.meta.config.retries["total_max_attempts"] == 1


def test_times_of_answers_stay_numbers_and_those_in_text_become_datetimes():
    from botocore.awsrequest import AWSResponse

    from penstock.connectors.kinesis.client import _parse_time, boto_client

    def answer(**_):
        given = AWSResponse("http://localhost:9", 200, {}, None)
        given._content = b'{"Records": [{"ApproximateArrivalTimestamp": 1767225600.25, "Data": "YQ=="}]}'
        return given

    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "hush"}
    client = boto_client("kinesis", "eu-central-1", None, keys, needed_by="it", refusal=AssertionError)
    client.meta.events.register("before-send", answer)
    (record,) = client.get_records(ShardIterator="i")["Records"]
    assert record == {"ApproximateArrivalTimestamp": 1767225600.25, "Data": b"a"}
    assert _parse_time("2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_the_job_and_the_source_limit_a_batch():
    from penstock.interfaces.source import ReadLimit

    source = ps.kinesis.Source("orders", max_rows_per_batch=5, max_bytes_per_batch=100)
    limits = source.limit_batch(ReadLimit(rows=9))
    assert (limits.rows, limits.bytes) == (5, 100)


def test_the_backlog_says_what_would_go_wrong():
    bench = Bench(2)
    bench.stream.put("k1", b"1")
    bench.until_quiet(40)
    position = decode(bench.reader.position())

    def warnings(hours: int) -> tuple[str, ...]:
        wall = (bench.clock.wall() + hours * HOUR) // 1_000
        return backlog_of(bench.source, position, client=bench.stream, wall=wall).warnings

    assert warnings(1) == ()
    assert all("minutes the stream deletes" in each for each in warnings(23))
    assert all(each.endswith("the start fails (on_lost_records='fail')") for each in warnings(25))
    assert len(warnings(25)) == 2


def test_the_examples_of_the_page_can_be_built_and_its_defaults_are_so():
    text = (Path(__file__).parents[2] / "docs" / "kinesis.md").read_text(encoding="utf-8")
    code = [block for block in blocks("kinesis.md", "python") if "import" not in block]
    names: dict[str, object] = {"p": ps.Pipeline("page"), "ps": ps}
    exec("\n".join(code), names)
    assert isinstance(names["bad"], ps.Stream)
    assert names["packed"].aggregates
    assert "hush" not in repr(names["secure"])
    source = ps.kinesis.Source("orders")
    assert source.discover_every == 10_000_000
    assert "`discover_every` (10 seconds)" in text
    assert source.poll_every == 250_000
    assert "`poll_every`\n(250 milliseconds)" in text
    assert (MAX_THREADS, BUFFER_BYTES) == (32, 64 * 2**20)
    assert "reads up to 32 shards at once, ahead of the batches, and keeps about 64 MB" in text


def test_doctor_says_what_a_stream_is_and_what_is_wrong_with_it(monkeypatch):
    bench = Bench(3)
    found = look_at_stream("source in", bench.source.address, client=bench.stream)
    assert (found.status, found.found) == (
        Status.OK,
        "kinesis orders at AWS: ACTIVE, 3 open shards, records are kept for 24 h",
    )
    bench.stream.errors["DescribeStreamSummary"] = [refusal("AccessDeniedException", "DescribeStreamSummary")]
    found = look_at_stream("source in", bench.source.address, client=bench.stream)
    assert found.status is Status.FAIL
    assert "Not allowed to use stream orders" in found.found
    monkeypatch.setitem(sys.modules, "boto3", None)
    found = look_at_stream("source in", bench.source.address)
    assert "pip install 'penstock[kinesis]'" in found.found
