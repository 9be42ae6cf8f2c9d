from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.files import ranges, source
from penstock.connectors.files.source import Source
from penstock.elements import Batch
from penstock.errors import DecodeError, GraphError, SourceChanged
from penstock.handles import Position
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceContext, Until
from penstock.job.failures import to_penstock_error
from window_harness import counted

pytestmark = pytest.mark.spark
CUT = 64 * 1024


def put(folder: Path, name: str, content: bytes | str, at: int) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (at, at))
    return path


def open_(spark, source, resume=None, until=Until.STOPPED):
    return source.open(SourceContext(uid="in", spark=spark, until=until), resume)


def ask(reader, now=0, **limits):
    return reader.poll(now=MonotonicTime(now), wall=WallTime(0), limits=ReadLimit(**limits))


def drain(reader, **limits):
    """All batches that are there, as lists of rows, and the position after each."""
    batches, positions = [], []
    while isinstance(poll := ask(reader, **limits), PlannedBatch):
        batches.append([tuple(row) for row in reader.frame(poll.plan).collect()])
        positions.append(through_json(reader.position()))
    return batches, positions


def through_json(position):
    return Position(kind=position.kind, detail=json.loads(json.dumps(position.detail)))


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def test_json_files_are_read_once_in_order_and_new_ones_follow(spark, tmp_path):
    put(tmp_path, "b.json", '{"id": 1, "user": "ü"}\r\n\n  \n{"user": null, "more": [1]}', at=10)
    put(tmp_path, "a.json", '{"id": 3}\n', at=20)
    put(tmp_path, "_c.json", "unfinished", at=5)
    source = Source(str(tmp_path), schema="id LONG, user STRING", max_files_per_batch=1)
    reader = open_(spark, source)
    batches, positions = drain(reader)
    assert batches == [[(1, "ü"), (None, None)], [(3, None)]]
    assert ask(reader, now=0) == NoData(wake_at=MonotonicTime(200_000))

    put(tmp_path, "moved.json", '{"id": 4}\n', at=1)
    assert ask(reader, now=199_999) == NoData(wake_at=MonotonicTime(200_000))
    poll = ask(reader, now=200_000)
    assert [tuple(row) for row in reader.frame(poll.plan).collect()] == [(4, None)]
    assert drain(open_(spark, source, positions[0]))[0] == [[(4, None)], [(3, None)]]


def test_a_plan_takes_all_if_no_file_waits(spark, tmp_path):
    for number in range(3):
        put(tmp_path, f"{number}.json", '{"a": 1}\n', at=number)
    reader = open_(spark, source.Source(tmp_path, format="json", schema="a INT", max_files_per_batch=2))
    assert [ask(reader).takes_all for _ in range(2)] == [False, True]


@pytest.mark.parametrize("name", ["x.json", "12:30.json", "a{b},[c] %20 é.json", "x.json.gz"])
def test_names_are_only_names(spark, tmp_path, name):
    content = b'{"id": 1}\n'
    put(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content, at=1)
    assert drain(open_(spark, source.Source(str(tmp_path), schema="id LONG")))[0] == [[(1,)]]


LINES = [f'{{"id": {n}, "text": "{"é€😀" * (n % 50)}"}}' for n in range(2000)]


@pytest.fixture(params=["spark", "workers"])
def decodes(request, monkeypatch):
    """Who decodes JSON: Spark, as for a few small files, or Python workers."""
    if request.param == "workers":
        monkeypatch.setattr(ranges, "_is_small", lambda _slices: False)


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_split_file_gives_the_rows_of_the_whole_and_any_cut_is_a_place_to_resume(spark, tmp_path, end, closed):
    put(tmp_path, "big.json", end.join(LINES) + (end if closed else ""), at=1)
    put(tmp_path, "then.json", '{"id": -1, "text": ""}', at=2)
    schema = "id LONG, text STRING"
    (whole,), _ = drain(open_(spark, source.Source(str(tmp_path), schema=schema)))
    cut = source.Source(str(tmp_path), schema=schema, split_bytes=CUT)
    batches, positions = drain(open_(spark, cut))
    assert len(batches) > 3
    assert [row for batch in batches for row in batch] == whole
    for at in (0, 1, len(positions) - 2):
        assert drain(open_(spark, cut, positions[at]))[0] == batches[at + 1 :]


def test_text_keeps_blank_lines_and_bytes_and_a_row_of_ten_megabytes(spark, tmp_path):
    long = "x" * (10 * 1024 * 1024)
    put(tmp_path, "t", b"\xef\xbb\xbfa\r\n\n \r\r\n" + long.encode() + b"\n\xff\r", at=1)
    whole = open_(spark, source.Source(str(tmp_path), format="text"))
    frame = whole.frame(ask(whole).plan)
    seen = [tuple(r) for r in frame.selectExpr("hex(left(value, 9))", "length(value)").collect()]
    assert seen == [("61", 1), ("", 0), ("200D", 2), ("78" * 9, len(long)), ("FF", 1)]
    cuts = open_(spark, source.Source(str(tmp_path), format="text", split_bytes=1024 * 1024 * 3))
    again = []
    while isinstance(poll := ask(cuts), PlannedBatch):
        cut = cuts.frame(poll.plan).selectExpr("hex(left(value, 9))", "length(value)")
        again += [tuple(r) for r in cut.collect()]
    assert again == seen


def test_a_json_row_of_twenty_five_megabytes_is_decoded(spark, tmp_path):
    put(tmp_path, "t", '{"v": "' + "x" * 25_000_000 + '"}', at=1)
    for split in (10**9, 2**20):
        reader = open_(spark, source.Source(str(tmp_path), schema="v STRING", split_bytes=split))
        lengths = []
        while isinstance(poll := ask(reader), PlannedBatch):
            lengths += [row[0] for row in reader.frame(poll.plan).selectExpr("length(v)").collect()]
        assert lengths == [25_000_000]


MALFORMED = [
    '{"id": "1"}',
    '{"id": 1.5}',
    '{"id": 1}{"id": 2}',
    '{"id": 1} more',
    '{"id": 1}}',
    '{"id": 1}} more',
    '{"id": 1}}}',
    '{"id": 1}]}',
    '{"id": 1}]} more',
    '{"id": 1}, "more": 2',
    '{"id": 1}, {"id": 2}',
    '{"id": 1},',
    '[{"id": 1}]',
    "null",
    "7",
    '{"id": 99999999999999999999}',
    '{"in": {"x": "no"}}',
    '{"id": 1',
]


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_row_fails_with_its_file_and_text(spark, tmp_path, line):
    put(tmp_path, "in.json", f'{{"id": 1}}\n{line}\n', at=1)
    reader = open_(spark, source.Source(str(tmp_path), schema="id LONG, in STRUCT<x: INT>"))
    frame = reader.frame(ask(reader).plan)
    with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
        noop(frame.select("in"))
    explained = ranges.explain(failure.value)
    assert isinstance(explained, DecodeError)
    assert f"{tmp_path}/in.json" in str(explained)
    assert line in str(explained)
    assert "parse_json" in str(explained)


@pytest.mark.usefixtures("decodes")
def test_a_malformed_row_cannot_be_filtered_or_projected_away(spark, tmp_path):
    put(tmp_path, "in.json", '{"id": "no"}\n' + "y" * 500, at=1)
    reader = open_(spark, source.Source(str(tmp_path), schema="id LONG"))
    frame = reader.frame(ask(reader).plan)
    for action in (lambda: frame.where("id > 3").collect(), frame.count):
        with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
            action()
        assert isinstance(ranges.explain(failure.value), DecodeError)


def test_many_small_files_are_read_by_workers_as_by_spark(spark, tmp_path, monkeypatch):
    for n in range(30):
        put(tmp_path, f"{n:02} é%20.txt", f"{n}\r\n\n{n} again", at=n)
    put(tmp_path, "longer", "x\n" * 5_000, at=99)
    rows = []
    for few in (0, 1_000):
        monkeypatch.setattr(ranges, "_FEW_FILES", few)
        reader = open_(spark, source.Source(str(tmp_path), format="text", with_file=True))
        frame = reader.frame(ask(reader).plan)
        assert ("MapInArrow" in frame._jdf.queryExecution().executedPlan().toString()) == (few == 0)
        rows.append(sorted(tuple(row) for row in frame.collect()))
    assert rows[0] == rows[1]
    assert len(rows[0]) == 30 * 3 + 5_000


def test_csv_with_header_and_options(spark, tmp_path):
    put(tmp_path, "a.csv", "id;name\n1;'x;y'\r\n\n2;\n", at=1)
    put(tmp_path, "b.csv", "id;name\nid;name", at=2)
    source = Source(
        str(tmp_path), format="csv", schema="id STRING, name STRING", options={"header": True, "sep": ";", "quote": "'"}
    )
    assert drain(open_(spark, source))[0] == [[("1", "x;y"), ("2", None), ("id", "name")]]
    rows = [f"{n};n{n}" for n in range(20_000)]
    put(tmp_path, "c.csv", "\n".join(["id;name", *rows]), at=3)
    cut = Source(
        str(tmp_path),
        format="csv",
        schema="id STRING, name STRING",
        pattern="c*",
        split_bytes=CUT,
        options=source_options,
    )
    batches, _ = drain(open_(spark, cut))
    assert len(batches) > 2
    assert [";".join(row) for batch in batches for row in batch] == rows


source_options = {"header": True, "sep": ";"}


@pytest.mark.parametrize("line", ["x,1", "1", "1,2,3"])
def test_a_malformed_csv_row_fails(spark, tmp_path, line):
    put(tmp_path, "in.csv", f"{line}\n", at=1)
    reader = open_(spark, source.Source(str(tmp_path), format="csv", schema="a INT, b INT"))
    with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
        noop(reader.frame(ask(reader).plan))
    explained = ranges.explain(failure.value)
    assert isinstance(explained, DecodeError)
    assert "parse_json" not in str(explained)  # which cannot read CSV
    assert "parse_csv" in str(explained)


@pytest.mark.parametrize(
    ("on_error", "rows", "bad"),
    [("split", [(2, "z")], ["x;1", "7", "1;2;3"]), ("null", [(None, None), (2, "z"), (None, None), (None, None)], [])],
)
def test_parse_csv_is_what_the_error_about_malformed_csv_proposes(tmp_path, spark, on_error, rows, bad):
    put(tmp_path, "in.csv", "x;1\n2;'z'\n7\n1;2;3\n", at=1)
    kept, aside = ps.memory.Sink(f"csv-{on_error}"), ps.memory.Sink(f"csv-bad-{on_error}")

    @ps.pipeline("csv")
    def csv(p):
        lines = p.read("lines", ps.files.Source(tmp_path, format="text", bounded=True))
        options = {"sep": ";", "quote": "'"}
        parsed = lines.parse_csv("value", "a INT, b STRING", on_error=on_error, options=options)
        if on_error == "split":
            parsed, broken = parsed
            broken.write("bad", aside)
        parsed.write("good", kept)

    ps.Job(csv, state=tmp_path / "state", spark=spark).run()
    assert [(row["a"], row["b"]) for row in kept.rows] == rows
    assert [row["value"] for row in aside.rows] == bad
    assert all("malformed CSV" in row["_error"] for row in aside.rows)


def test_parse_csv_refuses_options_that_mean_nothing_for_one_line():
    lines = ps.Pipeline("csv").read("lines", ps.files.Source("in", format="text"))
    for options, words in (({"header": True}, "each value is one line"), ({"sepp": ";"}, "no effect")):
        with pytest.raises(GraphError, match=words):
            lines.parse_csv("value", "a INT", options=options)


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
def test_a_file_that_was_not_written_to_its_end_is_a_decode_error_with_its_name(spark, tmp_path, ending):
    whole = (gzip if ending == ".gz" else bz2).compress(os.urandom(30_000).hex().encode())
    path = put(tmp_path, f"ä b.text{ending}", whole[: len(whole) // 2], at=1)
    reader = open_(spark, source.Source(str(tmp_path), format="text"))
    with pytest.raises(Exception, match="FAILED_READ_FILE") as failure:
        noop(reader.frame(ask(reader).plan))
    told = to_penstock_error(failure.value)
    assert isinstance(told, DecodeError)
    assert str(path) in str(told)
    assert "move it away" in str(told)


def test_parquet_whole_and_by_row_groups_is_the_same(spark, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    ids = range(60_000)
    table = pa.table(
        {
            "id": ids,
            "s": [str(n) for n in ids],
            "at": pa.array(ids, pa.timestamp("us", "UTC")),
            "d": pa.array([Decimal(n) / 4 for n in ids], pa.decimal128(12, 2)),
            "l": [[n, None] for n in ids],
        }
    )
    pq.write_table(table, source / "big.parquet", row_group_size=10_000)
    whole, _ = drain(open_(spark, Source(str(source), format="parquet")))
    batches, positions = drain(open_(spark, Source(str(source), format="parquet", split_bytes=CUT)))
    assert len(batches) > 2
    assert [row for batch in batches for row in batch] == whole[0]
    rest = open_(spark, Source(str(source), format="parquet", split_bytes=CUT), positions[1])
    assert drain(rest)[0] == batches[2:]
    given = Source(str(source), format="parquet", schema="S STRING, none INT", split_bytes=CUT)
    assert drain(open_(spark, given))[0][0][:2] == [("0", None), ("1", None)]


def test_parquet_of_another_type_is_a_decode_error(spark, tmp_path):
    pq.write_table(pa.table({"id": [str(n) for n in range(20_000)]}), tmp_path / "b.parquet")
    for split in (10**9, CUT):
        source = Source(str(tmp_path), format="parquet", schema="id LONG", split_bytes=split, pattern="b*")
        reader = open_(spark, source)
        with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
            noop(reader.frame(ask(reader).plan))
        explained = ranges.explain(failure.value)
        assert isinstance(explained, DecodeError)
        assert "b.parquet" in str(explained)
        assert "schema" in str(explained)


def test_a_planned_file_that_vanishes_or_changes_is_an_error(spark, tmp_path):
    source = Source(str(tmp_path), schema="id LONG")
    path = put(tmp_path, "a.json", '{"id": 1}\n', at=1)
    reader = open_(spark, source)
    poll = ask(reader)
    frame = reader.frame(poll.plan)
    path.write_text('{"id": 22}\n')
    with pytest.raises(SourceChanged, match=r"'a.json' was planned as 10 bytes"):
        reader.frame(poll.plan)
    with pytest.raises(SourceChanged, match=r"'a.json'"):
        reader.position()
    with pytest.raises(SourceChanged, match=r"'a.json' was read"):
        ask(reader, now=10**9)
    path.unlink()
    with pytest.raises(SourceChanged, match="gone"):
        reader.frame(poll.plan)
    with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
        noop(frame)
    assert isinstance(ranges.explain(failure.value), SourceChanged)


def test_a_cut_file_that_changes_while_it_is_read_fails_the_job(spark, tmp_path, monkeypatch):
    path = put(tmp_path, "a.json", '{"id": 1}\n' * 10_000, at=1)
    reader = open_(spark, source.Source(str(tmp_path), schema="id LONG", split_bytes=CUT))
    poll = ask(reader)
    by_spark = reader.frame(poll.plan)
    monkeypatch.setattr(ranges, "_is_small", lambda _slices: False)
    by_workers = reader.frame(poll.plan)
    with path.open("a") as more:
        more.write('{"id": 2}\n')
    noop(by_spark)  # whatever it reads, the batch is not good
    with pytest.raises(SourceChanged, match=r"'a\.json'"):
        poll.verify()
    with pytest.raises(Exception, match=r"penstock\.(decode|changed):|FAILED_READ_FILE") as failure:
        noop(by_workers)
    explained = ranges.explain(failure.value)
    assert isinstance(explained, SourceChanged)
    assert "'a.json'" in str(explained)
    with pytest.raises(SourceChanged, match="partly read"):
        ask(reader, now=10**9)


def test_a_listed_file_that_goes_away_before_it_is_planned_is_left_out(spark, tmp_path):
    for name in "abc":
        put(tmp_path, name, name, at=1)
    reader = open_(spark, source.Source(str(tmp_path), format="text", max_files_per_batch=1))
    ask(reader)
    (tmp_path / "b").unlink()
    assert drain(reader)[0] == [[("c",)]]


def test_caught_up_reads_what_was_there_at_the_opening(spark, tmp_path):
    put(tmp_path, "a", "a", at=2)
    source = Source(str(tmp_path), format="text")
    reader = open_(spark, source, until=Until.CAUGHT_UP)
    put(tmp_path, "b", "b", at=1)
    batches, positions = drain(reader)
    assert batches == [[("a",)]]
    assert ask(reader) == CaughtUp()
    assert drain(open_(spark, source, positions[-1], until=Until.CAUGHT_UP))[0] == [[("b",)]]


def test_bounded_ends_after_what_was_there_at_the_first_start(spark, tmp_path):
    put(tmp_path, "a", "a", at=1)
    put(tmp_path, "b", "b", at=2)
    source = Source(str(tmp_path), format="text", bounded=True, max_files_per_batch=1)
    first = open_(spark, source)
    start = through_json(first.position())
    ask(first)
    middle = through_json(first.position())
    put(tmp_path, "c", "c", at=0)
    assert drain(open_(spark, source, start))[0] == [[("a",)], [("b",)]]
    resumed = open_(spark, source, middle)
    assert drain(resumed)[0] == [[("b",)]]
    assert ask(resumed) == Ended()
    assert ask(open_(spark, source, through_json(resumed.position()))) == Ended()


def test_a_whole_file_replaced_before_it_was_read_does_not_pass_for_what_was_planned(spark, tmp_path):
    path = put(tmp_path, "a.json", '{"id": 1}\n', at=1)
    reader = open_(spark, source.Source(str(tmp_path), schema="id LONG"))
    poll = ask(reader)
    frame = reader.frame(poll.plan)
    poll.verify()
    before = reader.position()
    put(tmp_path, "new", '{"id": 22}\n', at=1).replace(path)
    batch = Batch(frame=frame, sequence=1, verify=poll.verify)
    assert reader.position() == before  # the barrier went before the batch was run, so it sees nothing
    noop(frame)
    with pytest.raises(SourceChanged, match=r"'a.json' was planned as 10 bytes"):
        batch.settle()


def test_what_a_bounded_run_had_left_is_not_the_end_of_a_later_one(spark, tmp_path):
    put(tmp_path, "a", "a", at=1)
    bounded = open_(spark, source.Source(str(tmp_path), format="text", bounded=True))
    _, positions = drain(bounded)
    put(tmp_path, "b", "b", at=2)
    later = open_(spark, source.Source(str(tmp_path), format="text"), positions[-1], until=Until.CAUGHT_UP)
    batches, positions = drain(later)
    assert batches == [[("b",)]]
    put(tmp_path, "c", "c", at=3)
    again = open_(spark, source.Source(str(tmp_path), format="text", bounded=True), positions[-1])
    put(tmp_path, "d", "d", at=4)
    assert "remaining" in again.position().detail
    assert drain(again)[0] == [[("c",)]]


def test_caught_up_leaves_out_a_file_that_goes_away_and_bounded_stops(spark, tmp_path):
    for name in "abcd":
        put(tmp_path, name, name, at=1)
    caught_up = open_(spark, source.Source(str(tmp_path), format="text", max_files_per_batch=1), until=Until.CAUGHT_UP)
    bounded = open_(spark, source.Source(str(tmp_path), format="text", max_files_per_batch=1, bounded=True))
    for reader in (caught_up, bounded):
        ask(reader)
    (tmp_path / "b").unlink()
    put(tmp_path, "c", "c, later", at=2)
    put(tmp_path, "e", "e", at=1)
    assert drain(caught_up)[0] == [[("d",)], [("c, later",)]]
    assert ask(caught_up) == CaughtUp()
    with pytest.raises(SourceChanged, match=r"'b'.*gone"):
        bounded.frame(ask(bounded).plan)


def test_compressed_files_are_read_by_workers_as_by_spark(spark, tmp_path):
    lines = [*(f"{n};n{n}" for n in range(30_000)), f"long;{'x' * 600_000}"]  # the last is a block of several chunks
    for codec, ending in (("deflate", ".deflate"), ("snappy", ".snappy"), ("lz4", ".lz4"), ("bzip2", ".bz2")):
        written = tmp_path / "by_spark"
        frame = spark.createDataFrame([(line,) for line in ["id;name", *lines]], "v STRING").coalesce(1)
        frame.write.mode("overwrite").text(str(written), compression=codec)
        folder = tmp_path / codec
        folder.mkdir()
        next(written.glob(f"part-*{ending}")).rename(folder / f"12:30.csv{ending}")
        source = Source(
            str(folder), format="csv", schema="id STRING, name STRING", options=source_options, split_bytes=CUT
        )
        (batch,), _ = drain(open_(spark, source))
        assert [";".join(row) for row in batch] == lines


TWO_LINES = b"1;\xc3\xa4\n2;b\n"
IN_HADOOPS_BLOCKS = pa.compress(TWO_LINES, codec="lz4_raw", asbytes=True)


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".gz", gzip.compress(TWO_LINES)),
        (".bz2", bz2.compress(TWO_LINES)),
        (".zst", pa.compress(TWO_LINES, codec="zstd", asbytes=True)),
        (".xz", lzma.compress(TWO_LINES)),
        (".lz4", pa.compress(TWO_LINES, codec="lz4", asbytes=True)),
        (".lz4", len(TWO_LINES).to_bytes(4, "big") + len(IN_HADOOPS_BLOCKS).to_bytes(4, "big") + IN_HADOOPS_BLOCKS),
    ],
    ids=["gz", "bz2", "zst", "xz", "lz4 frame", "lz4 blocks"],
)
def test_a_compressed_file_is_read_however_few_there_are(spark, tmp_path, ending, content):
    path = put(tmp_path, f"a{ending}", content, at=1)
    assert drain(open_(spark, Source(tmp_path, format="text")))[0] == [[("1;ä",), ("2;b",)]]
    csv = Source(tmp_path, format="csv", schema="id INT, name STRING", options={"sep": ";", "multiLine": True})
    reader = open_(spark, csv)
    if ending == ".xz" or content.startswith(b"\x04\x22\x4d\x18"):
        with pytest.raises(DecodeError, match="leave out the option multiLine") as refused:
            reader.frame(ask(reader).plan)
        assert str(path) in str(refused.value)
    else:
        assert drain(reader)[0] == [[(1, "ä"), (2, "b")]]


def test_limits(spark, tmp_path):
    for name in "abcd":
        put(tmp_path, name, f"{name}\n" * 100, at=1)
    source = Source(str(tmp_path), format="text")
    assert [len(batch) for batch in drain(open_(spark, source), bytes=450)[0]] == [200, 200]
    assert [len(batch) for batch in drain(open_(spark, source), rows=300)[0]] == [300, 100]
    assert ask(open_(spark, source)).bytes == 800


def test_one_job_a_batch_and_nothing_compiled_for_the_next(spark, tmp_path):
    for n in range(40):
        put(tmp_path, f"f{n}.json", f'{{"id": {n}, "user": "u"}}\n' * (10 + n), at=n)
    put(tmp_path, "big.json", '{"id": 1, "user": "u"}\n' * 30_000, at=99)
    source = Source(str(tmp_path), schema="id LONG, user STRING", split_bytes=CUT)
    reader = open_(spark, source)
    counts, compiled = [], []
    while isinstance(poll := ask(reader, bytes=1500 + len(counts) * 100), PlannedBatch):
        with counted(spark) as cost:
            noop(reader.frame(poll.plan))
        counts.append(cost.jobs)
        compiled.append(cost.compilations)
    assert len(counts) > 10
    assert set(counts) == {1}
    assert sum(1 for n in compiled if n) <= 2  # each of the two shapes once


def test_frames_are_stable_and_decoded_once(spark, tmp_path):
    put(tmp_path, "a.json", '{"id": 1, "user": "u"}\n', at=1)
    reader = open_(spark, source.Source(str(tmp_path), schema="id LONG, user STRING"))
    frame = reader.frame(ask(reader).plan)
    assert frame.collect() == frame.collect()
    plan = frame.where("id > 0 and user = 'u'")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json") == 1


def test_what_cannot_work_is_refused(spark, tmp_path):
    with pytest.raises(GraphError, match="schema="):
        source.Source("in", format="json")
    with pytest.raises(GraphError, match="not one of"):
        source.Source("in", format="xml")
    with pytest.raises(GraphError, match="each record is a text of its own"):
        source.Source("in", format="csv", schema="a INT", options={"lineSep": ";"})
    with pytest.raises(GraphError, match="mount"):
        source.Source("s3://in", format="text")
    with pytest.raises(GraphError, match=r"no list of columns: .*Write it as in"):
        source.Source("in", schema="a NOTHING").schema(spark)
    with pytest.raises(GraphError, match="Create it"):
        open_(spark, source.Source(str(tmp_path / "none"), format="text"))
    with pytest.raises(GraphError, match="schema="):
        source.Source(str(tmp_path), format="parquet").schema(spark)


@pytest.mark.parametrize("format", ["json", "csv", "text", "parquet"])
@pytest.mark.parametrize("split", [10**9, CUT])
def test_partition_columns_come_from_the_names_of_folders(spark, tmp_path, format, split):
    folders = ["day=2026-01-31/city=K%C3%B6ln", "day=2026-02-01/city=__HIVE_DEFAULT_PARTITION__"]
    folders.append("city=a b/day=2026-02-02")
    root = tmp_path / "day=never"  # above the directory, names mean nothing
    for number, name in enumerate(folders):
        (root / name).mkdir(parents=True)
        path = root / name / f"a+b %20 {number}"
        count = 20_000 if number == 0 else 1
        if format == "parquet":
            pq.write_table(pa.table({"value": [f"v{number}-{each:09}" for each in range(count)]}), path)
        else:
            line = {"json": '{{"value": "v{}-{:09}"}}\n'}.get(format, "v{}-{:09}\n")
            path.write_text("".join(line.format(number, each) for each in range(count)))
        os.utime(path, (number, number))
    schema = None if format == "text" else "value STRING"
    files = Source(
        root, format=format, schema=schema, recursive=True, partition_columns="day DATE, city STRING", split_bytes=split
    )
    assert files.schema(spark).simpleString() == "struct<value:string,day:date,city:string>"
    batches, _ = drain(open_(spark, files))
    rows = [(value[:2], str(day), city) for batch in batches for value, day, city in batch]
    assert len(rows) == 20_002
    assert sorted(set(rows)) == [
        ("v0", "2026-01-31", "Köln"),
        ("v1", "2026-02-01", None),
        ("v2", "2026-02-02", "a b"),
    ]


@pytest.mark.parametrize("folder", ["day=soon", "days=2026-01-31", "."])
def test_a_file_whose_folders_do_not_fit_partition_columns_fails_the_job_with_its_path(spark, tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    put(tmp_path / folder, "a.txt", "x\n", at=1)
    reader = open_(spark, Source(tmp_path, format="text", recursive=True, partition_columns="day DATE"))
    with pytest.raises(Exception, match=r"penstock\.decode:") as failure:
        noop(reader.frame(ask(reader).plan))
    explained = ranges.explain(failure.value)
    assert isinstance(explained, DecodeError)
    assert f"{tmp_path}" in str(explained)
    assert "no folder day=… with a value of type date. Move the file" in str(explained)


def test_partition_columns_that_cannot_be_meant_are_refused(spark):
    with pytest.raises(GraphError, match="recursive=True"):
        Source("in", format="text", partition_columns="day DATE")
    twice = Source("in", schema="day DATE, n INT", recursive=True, partition_columns="DAY DATE")
    with pytest.raises(GraphError, match="'DAY' is in the files and in partition_columns"):
        twice.schema(spark)


def test_columns_of_csv_are_found_by_the_names_in_each_files_first_line(spark, tmp_path):
    put(tmp_path, "a.csv", "id;name;at\n1;'x;y';noon\n", at=1)
    put(tmp_path, "b.csv", "\ufeffname;ID\nz;2\nw;3\n", at=2)
    put(tmp_path, "c.csv", "id\n4\n", at=3)
    put(tmp_path, "d.csv", "name;id\n" + "".join(f"n{number};{number}\n" for number in range(20_000)), at=4)
    options = {"header": "names", "sep": ";", "quote": "'"}
    files = Source(tmp_path, format="csv", schema="id INT, name STRING", options=options, split_bytes=CUT)
    batches, _ = drain(open_(spark, files))
    assert batches[0] == [(1, "x;y"), (2, "z"), (3, "w"), (4, None)]
    assert [row for batch in batches[1:] for row in batch] == [(number, f"n{number}") for number in range(20_000)]
    assert len(batches) > 3


@pytest.mark.parametrize(("separator", "between"), [(r"\t", "\t"), ("||", "||"), (r"\\|", "\\|")])
def test_names_are_found_with_separators_as_spark_takes_them(spark, tmp_path, separator, between):
    put(tmp_path, "a.csv", f'name{between}"id"\n"x{between}y"{between}1\n', at=1)
    options = {"header": "names", "sep": separator}
    files = Source(tmp_path, format="csv", schema="id INT, name STRING", options=options)
    assert drain(open_(spark, files))[0] == [[(1, f"x{between}y")]]


@pytest.mark.parametrize(("first", "words"), [("a;b", "names no column of the schema"), ("id;ID", "'id' twice")])
def test_a_first_line_that_does_not_name_the_columns_is_refused_with_the_file(spark, tmp_path, first, words):
    path = put(tmp_path, "a.csv", f"{first}\n1;2\n", at=1)
    files = Source(tmp_path, format="csv", schema="id INT", options={"header": "names", "sep": ";"})
    reader = open_(spark, files)
    with pytest.raises(DecodeError, match=words) as refused:
        reader.frame(ask(reader).plan)
    assert str(path) in str(refused.value)
    with pytest.raises(GraphError, match="Option 'header' is 'first'"):
        Source(tmp_path, format="csv", schema="id INT", options={"header": "first"})
