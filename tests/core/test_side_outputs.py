"""Which sinks get late and bad rows, through whatever steps lie between; from the graph alone."""

import penstock as ps
from core.graphs import NoSink, NoSource
from penstock.graph.queries import SideOutput, SideOutputSink, side_outputs

SCHEMA = "user STRING, at TIMESTAMP"


def outlet(uid, *, direct):
    return SideOutputSink(uid=uid, to="nowhere", is_direct=direct)


def totals(stream, uid="totals"):
    counted = stream.with_watermark("at", delay="1 second").group_by("user", ps.tumbling("1 minute"))
    return counted.agg(uid, ps.agg.count().alias("n"))


def test_late_and_bad_rows_are_followed_to_their_sinks():
    @ps.pipeline("orders")
    def orders(p):
        parsed, bad = p.read("lines", NoSource()).parse_json("value", SCHEMA, on_error="split")
        bad.write("bad-out", NoSink())
        bad.where("value != ''").write("bad-some", NoSink())
        found = totals(parsed)
        found.write("out", NoSink())
        found.late.select("user").write("late-out", NoSink())

    assert side_outputs(orders.graph()) == (
        SideOutput(
            step="parse_json value",
            kind="bad",
            sinks=(outlet("bad-out", direct=True), outlet("bad-some", direct=False)),
        ),
        SideOutput(step="totals", kind="late", sinks=(outlet("late-out", direct=False),)),
    )


def test_dead_letters_are_all_of_the_rows_one_letter_each():
    @ps.pipeline("orders")
    def orders(p):
        parsed, bad = p.read("lines", NoSource()).parse_json("value", SCHEMA, on_error="split")
        bad.dead_letter("bad-lines")
        parsed.write("out", NoSink())

    (found,) = side_outputs(orders.graph())
    assert found.sinks == (SideOutputSink(uid="bad-lines", to="dead letters", is_direct=True),)


def test_late_rows_that_nothing_takes_or_that_go_into_another_step_have_no_sink():
    @ps.pipeline("orders")
    def orders(p):
        one = totals(p.read("lines", NoSource()))
        one.write("out", NoSink())
        totals(one.late, "again").write("again-out", NoSink())

    assert side_outputs(orders.graph()) == (
        SideOutput(step="totals", kind="late"),
        SideOutput(step="again", kind="late"),
    )


def test_a_union_mixes_rows_so_that_its_sink_has_not_counted_one_kind_alone():
    @ps.pipeline("orders")
    def orders(p):
        one, two = totals(p.read("a", NoSource()), "one"), totals(p.read("b", NoSource()), "two")
        one.write("one-out", NoSink())
        two.write("two-out", NoSink())
        one.late.union(two.late).write("late-out", NoSink())

    assert {each.step: each.sinks for each in side_outputs(orders.graph())} == {
        "one": (outlet("late-out", direct=False),),
        "two": (outlet("late-out", direct=False),),
    }
