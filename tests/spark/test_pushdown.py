"""A parse_json that its source does while it reads: nobody can tell but by the time it takes."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.compiler.analysis import analyze
from penstock.compiler.tasks import build_tasks
from penstock.elements import Batch, SourcePartitions
from penstock.errors import DecodeError, SchemaMismatch
from penstock.facts import BatchDone, RowsRead, WatermarkAdvanced
from penstock.formats import text
from penstock.graph.nodes import ParseJson
from penstock.graph.queries import pushed_down_parse
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC
from spark.job_kit import Watch
from spark.json_source import Bytes, DecodedBytes
from window_harness import compilations, persistent

pytestmark = pytest.mark.spark

RECORDS = "id LONG, user STRING, at TIMESTAMP"


def good(n: int) -> bytes:
    return f'{{"id": {n}, "user": "u{n % 3}", "at": "2026-01-01T00:{n % 60:02}:00Z", "more": [{n}]}}'.encode()


UNDECIDED_GOOD = (b'{"id": 7, "user": 8}', b'{"at": "2026-01-01T00:59:30 UTC"}', b'{"id": 1, "id": 2}')
BAD = (b"", b"nothing", b'{"id": "x"}', b'{"id": 1} {"id": 2}', b'{"user": "\xff", "id": 1.5}', None)
BATCHES = (
    tuple(map(good, range(12))),
    (good(12), *BAD, good(13), *UNDECIDED_GOOD),
    tuple(map(good, range(14, 20))),
    (None, good(20), None),
    BAD,
    tuple(map(good, range(21, 30))),
)
WHERE = ("driver", "silent", "workers")


class Run:
    """A whole job over a source, until it is caught up."""

    def __init__(self, spark, tmp_path, source, on_error: str, *, schema: str = RECORDS, uid: str = "in") -> None:
        self.out, self.side, self.watch = ps.memory.Sink(), ps.memory.Sink(), Watch()

        @ps.pipeline("parsing")
        def pipeline(p: ps.Pipeline) -> None:
            raw = p.read(uid, source)
            if on_error == "split":
                parsed, bad = raw.parse_json("value", schema, on_error="split")
                bad.write("parsed-bad", self.side)
            else:
                parsed = raw.parse_json("value", schema, on_error=on_error)
            timed = parsed.with_watermark("at", delay="0 seconds", max_ahead=None)
            timed.with_column("twice", "id * 2").write("parsed", self.out)

        job = ps.Job(pipeline, state=tmp_path, spark=spark, listener=self.watch, checkpoint_every="1 hour")
        self.report = job.run(until="caught-up")

    def told(self) -> dict[str, object]:
        """All that anybody can see of it, but for what a side branch without rows knows of the main one."""
        done = [(fact.task, fact.sequence, fact.rows, dict(fact.figures)) for fact in self.watch.of(BatchDone)]
        return {
            "rows": sorted(map(repr, self.out.rows)),
            "bad": sorted(map(repr, self.side.rows)),
            "read": sum(fact.rows for fact in self.watch.of(RowsRead)),
            "time": max(fact.at for fact in self.watch.of(WatermarkAdvanced, task="parsed")),
            "figures": sorted((task, n, rows, repr(_figures(each)) if rows else "") for task, n, rows, each in done),
        }


def _figures(told: dict[str, object]) -> dict[str, object]:
    return {name: figures for name, figures in sorted(told.items()) if not name.startswith("ran:")}


@pytest.mark.parametrize("on_error", ["split", "null"])
def test_rows_bad_rows_and_figures_are_the_same_wherever_it_is_done(spark, tmp_path, on_error):
    before = persistent(spark)
    usual = Run(spark, tmp_path / "usual", Bytes(BATCHES), on_error).told()
    assert len(usual["rows"]) == sum(map(len, BATCHES)) - (14 if on_error == "split" else 0)
    for where in WHERE if on_error == "split" else WHERE[:1]:
        told = Run(spark, tmp_path / where, DecodedBytes(BATCHES, where=where), on_error).told()
        assert told == usual, where
    assert persistent(spark) <= before


def test_a_bad_record_ends_a_job_that_says_so_wherever_it_is_done(spark, tmp_path):
    for where in WHERE:
        fine = DecodedBytes((BATCHES[0], (good(1), *UNDECIDED_GOOD)), where=where)
        run = Run(spark, tmp_path / f"fine-{where}", fine, "fail")
        assert len(run.out.rows) == 16
        for bad in ((good(1), b'{"id": "x"}'), (good(1), None)):
            with pytest.raises(DecodeError, match=r"null value|field 'id' is not of its declared type") as usual:
                Run(spark, tmp_path / f"usual-{where}-{bad[1]!r:.1}", Bytes((bad,)), "fail")
            with pytest.raises(DecodeError) as failure:
                Run(spark, tmp_path / f"{where}-{bad[1]!r:.1}", DecodedBytes((bad,), where=where), "fail")
            assert str(failure.value) == str(usual.value)


def test_a_job_goes_on_from_its_checkpoint_with_and_without(spark, tmp_path):
    run = Run(spark, tmp_path, Bytes(BATCHES[:2]), "split")
    rows, bad = run.out.rows, run.side.rows
    for source in (DecodedBytes(BATCHES[:4]), Bytes(BATCHES[:5]), DecodedBytes(BATCHES)):
        run = Run(spark, tmp_path, source, "split")
        rows, bad = rows + run.out.rows, bad + run.side.rows
    usual = Run(spark, tmp_path / "usual", Bytes(BATCHES), "split")
    assert sorted(map(repr, rows)) == sorted(map(repr, usual.out.rows))
    assert sorted(map(repr, bad)) == sorted(map(repr, usual.side.rows))


# ------------------------------------------------------------------------------------------------------------- plans


def analysed(spark, source, on_error="split", schema=RECORDS, between=None):
    p = ps.Pipeline("demo")
    raw = p.read("in", source)
    parsed = (between(raw) if between else raw).parse_json("value", schema, on_error=on_error)
    parsed, *bad = parsed if on_error == "split" else (parsed,)
    parsed.write("parsed", ps.memory.Sink())
    for each in bad:
        each.write("parsed-bad", ps.memory.Sink())
    graph = p.graph()
    return analyze(graph, spark), graph, build_tasks(graph)[0].routes["out"]


def sent(spark, analysis, route, source, values) -> list[Batch]:
    """A batch of the source after the steps of its route, at the end of each branch."""
    reader = analysis.source(analysis.graph.nodes[0]).open(_Context(spark), None)
    reader.source = type(source)(**{**vars(reader.source), "batches": (tuple(values),)})
    poll = reader.poll(now=None, wall=None, limits=None)
    batch = Batch(frame=reader.frame(poll.plan), sequence=1, metrics=poll.metrics, partitions=poll.partitions)
    batch = analysis.chain(analysis.graph.nodes[0], route.steps)(batch)
    return [analysis.chain(None, branch.steps, is_root=False)(batch) for branch in route.branches] or [batch]


class _Context:
    def __init__(self, spark):
        self.spark = spark


def physical(batch: Batch) -> str:
    return str(batch.frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("on_error", ["fail", "null", "split"])
def test_what_is_all_decoded_is_a_projection_and_the_rest_is_decoded_once(spark, on_error):
    source = DecodedBytes(())
    analysis, _, route = analysed(spark, source, on_error)
    whole = sent(spark, analysis, route, source, map(good, range(9)))
    assert "from_json" not in physical(whole[0])
    assert "Generate" not in physical(whole[0])
    assert whole[0].frame.count() == 9
    some = sent(spark, analysis, route, source, [good(1), UNDECIDED_GOOD[0]])
    assert physical(some[0]).count("from_json") == 1
    assert whole[0].frame.schema == some[0].frame.schema
    if on_error == "split":
        assert whole[1].frame.schema == some[1].frame.schema
        assert whole[1].frame.collect() == []
        assert set(whole[1].metrics) == {whole[1].only_if[0]}
        assert whole[1].metrics[whole[1].only_if[0]].value == {"bad": 0}
    if on_error != "fail":
        assert not any(measure.settled for name, measure in some[0].metrics.items())
    assert UNDECODED_METRIC not in {**whole[0].metrics, **some[0].metrics}
    for each in (*whole, *some):
        assert each.partitions == SourcePartitions(names=("0", "1"), column="part")


def test_spark_decodes_nothing_that_was_decoded(spark):
    schema = text.struct_type(spark, RECORDS)
    frame = spark.sql(
        "SELECT 'garbage' AS value, "
        f"named_struct('id', 1L, 'user', 'u', 'at', TIMESTAMP'2026-01-01') AS {DECODED_RECORD}"
    )
    (row,) = text.drop_malformed(text.decode_json(frame, "value", schema, done=DECODED_RECORD), "value").collect()
    assert (row.id, row.user, row.at) == (1, "u", dt.datetime(2026, 1, 1))  # noqa: DTZ001 - as Spark gives it
    alone = text.decode_json(frame.select("value"), "value", schema)
    assert text.drop_malformed(alone, "value").collect() == []


def test_nothing_is_compiled_again_once_both_kinds_of_batches_have_been_there(spark):
    source = DecodedBytes(())
    for on_error in ("fail", "split"):
        analysis, _, route = analysed(spark, source, on_error)
        for round in range(3):
            before = compilations(spark)
            for values in ([good(1)] * (5 + round), [good(1), UNDECIDED_GOOD[round]]):
                for batch in sent(spark, analysis, route, source, values):
                    batch.frame.write.format("noop").mode("append").save()
        assert compilations(spark) == before


def test_nobody_sees_that_a_source_decodes(spark):
    p = ps.Pipeline("demo")
    raw = p.read("in", DecodedBytes((BATCHES[0],)))
    parsed, bad = raw.parse_json("value", RECORDS, on_error="split")
    assert raw.schema.names == ["part", "value", "n"]
    assert parsed.schema.names == ["part", "n", "id", "user", "at"]
    assert bad.schema.names == ["part", "value", "n", "_error"]
    rows = [{"part": "0", "value": good(1), "n": 1}, {"value": b"x"}]
    assert [row.id for row in parsed.preview(rows).collect()] == [1]
    assert [row.value for row in bad.preview(rows).collect()] == [b"x"]
    wrong = ps.Pipeline("wrong").read("in", DecodedBytes(()))
    with pytest.raises(SchemaMismatch, match=r"Columns: part, value, n\.$"):
        wrong.parse_json("values", RECORDS).schema  # noqa: B018
    assert wrong.schema.names == ["part", "value", "n"], "it is asked for by itself"


def test_it_is_left_to_spark_where_others_want_the_text_or_the_source_cannot(spark):
    def of(source, **steps):
        analysis, graph, _ = analysed(spark, source, **steps)
        parse = next(node for node in graph.nodes if isinstance(node, ParseJson))
        return analysis.source(graph.nodes[0]), pushed_down_parse(graph, graph.nodes[0]) is parse

    source = DecodedBytes(())
    decoding, is_pushed = of(source)
    assert decoding.record.names == ["id", "user", "at"]
    assert is_pushed
    for other, steps in (
        (Bytes(()), {}),
        (source, {"between": lambda raw: raw.where("n > 0")}),
        (source, {"schema": "tags MAP<STRING, STRING>"}),
    ):
        taken, is_pushed = of(other, **steps)
        assert taken is other
        assert is_pushed == ("schema" in steps), "what its types allow is known only when it is built"
    p = ps.Pipeline("demo")
    raw = p.read("in", source)
    raw.parse_json("value", RECORDS).write("parsed", ps.memory.Sink())
    raw.write("raw", ps.memory.Sink())
    assert pushed_down_parse(p.graph(), p.graph().nodes[0]) is None
    usual = spark.conf.get("spark.sql.legacy.timeParserPolicy")
    try:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
        assert of(source)[0] is source
    finally:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", usual)


def test_a_pipeline_with_such_a_source_is_tested_as_any_other(spark):
    @ps.pipeline("parsing")
    def pipeline(p: ps.Pipeline) -> None:
        parsed, bad = p.read("in", DecodedBytes(())).parse_json("value", RECORDS, on_error="split")
        parsed.select("id").write("parsed", ps.memory.Sink())
        bad.write("parsed-bad", ps.memory.Sink())

    with ps.testing.run(pipeline, spark) as t:
        t.send("in", [{"value": good(1), "part": "0"}, {"value": b"x"}])
        t.checkpoint()
        assert t.rows("parsed") == [{"id": 1}]
        assert [row["value"] for row in t.rows("parsed-bad")] == [b"x"]
