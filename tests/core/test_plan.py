"""From graph to tasks and routes."""

from core.graphs import NoSink, NoSource, NoSpec
from penstock.compiler.tasks import InputRef, Route, TaskSpec, build_tasks
from penstock.graph.nodes import (
    CallSite,
    Graph,
    Keyed,
    Node,
    ParseJson,
    PortRef,
    PortSelect,
    Read,
    RowWise,
    Union,
    WithWatermark,
    Write,
)

HERE = CallSite("shop.py", 1)


def read(id: int, uid: str = "in") -> Read:
    return Read(id=id, origin=HERE, uid=uid, source=NoSource())


def row(id: int, of: PortRef) -> RowWise:
    return RowWise(id=id, origin=HERE, inputs=(of,), verb="where", text="x", build=lambda frame: frame)


def mark(id: int, of: PortRef) -> WithWatermark:
    return WithWatermark(id=id, origin=HERE, inputs=(of,), column="at", delay=0, idle_after=None, max_ahead=None)


def write(id: int, of: PortRef, uid: str = "out") -> Write:
    return Write(id=id, origin=HERE, inputs=(of,), uid=uid, sink=NoSink())


def plan(*nodes: Node) -> dict[str, TaskSpec]:
    return {task.id: task for task in build_tasks(Graph(name="j", origin=HERE, nodes=nodes))}


def test_stateless_steps_fuse_into_the_route() -> None:
    first, second = row(1, PortRef(0)), row(2, PortRef(1))
    tasks = plan(read(0), first, second, write(3, PortRef(2)))
    assert list(tasks) == ["in", "out"]
    assert tasks["in"].routes == {"out": Route(steps=(first, second), to=InputRef("out", 0))}
    assert tasks["out"].inputs == 1


def test_a_stream_read_twice_branches_where_it_is_read_twice() -> None:
    shared, left = row(1, PortRef(0)), row(2, PortRef(1))
    tasks = plan(read(0), shared, left, write(3, PortRef(2), "a"), write(4, PortRef(1), "b"))
    route = tasks["in"].routes["out"]
    assert route == Route(
        steps=(shared,),
        branches=(Route(steps=(left,), to=InputRef("a", 0)), Route(steps=(), to=InputRef("b", 0))),
    )


def test_a_union_is_a_task_and_may_read_one_stream_twice() -> None:
    both = Union(id=2, origin=HERE, inputs=(PortRef(0), PortRef(1)))
    tasks = plan(read(0, "a"), read(1, "b"), both, write(3, PortRef(2)))
    assert tasks["union@a+b"].inputs == 2
    assert tasks["b"].routes["out"].to == InputRef("union@a+b", 1)
    same = plan(read(0), Union(id=1, origin=HERE, inputs=(PortRef(0), PortRef(0))), write(2, PortRef(1)))
    twice = [branch.to for branch in same["in"].routes["out"].branches]
    assert twice == [InputRef("union@in+in", 0), InputRef("union@in+in", 1)]


def test_a_split_has_a_branch_for_each_port_that_is_read() -> None:
    parse = ParseJson(id=1, origin=HERE, inputs=(PortRef(0),), column="v", schema="a INT", on_error="split")
    good, bad = write(2, PortRef(1), "good"), write(3, PortRef(1, "bad"), "bad")
    route = plan(read(0), parse, good, bad)["in"].routes["out"]
    assert route.steps == (parse,)
    assert [branch.steps for branch in route.branches] == [(PortSelect(parse, "out"),), (PortSelect(parse, "bad"),)]
    only = plan(read(0), parse, good)["in"].routes["out"]
    assert only == Route(steps=(parse, PortSelect(parse, "out")), to=InputRef("good", 0))


def test_a_side_output_that_nobody_reads_has_no_route() -> None:
    keyed = Keyed(id=1, origin=HERE, inputs=(PortRef(0),), uid="totals", spec=NoSpec())
    assert set(plan(read(0), keyed, write(2, PortRef(1)))["totals"].routes) == {"out"}
    late = write(3, PortRef(1, "late"), "late-out")
    assert set(plan(read(0), keyed, write(2, PortRef(1)), late)["totals"].routes) == {"out", "late"}


def test_each_input_knows_the_last_watermark_on_its_way() -> None:
    upper, lower = mark(1, PortRef(0)), mark(2, PortRef(1))
    tasks = plan(read(0), upper, lower, write(3, PortRef(2), "a"), write(4, PortRef(1), "b"))
    assert dict(tasks["in"].routes["out"].leaves()) == {InputRef("a", 0): lower, InputRef("b", 0): upper}


def test_a_union_keeps_its_name_when_steps_come_or_go_and_changes_it_with_its_inputs() -> None:
    def name(*between: Node, inputs: tuple[PortRef, ...]) -> str:
        both = Union(id=2 + len(between), origin=HERE, inputs=inputs)
        tasks = plan(read(0, "a"), read(1, "b"), *between, both, write(3 + len(between), PortRef(both.id)))
        return next(id for id in tasks if id.startswith("union@"))

    assert name(inputs=(PortRef(0), PortRef(1))) == "union@a+b"
    assert name(row(2, PortRef(0)), inputs=(PortRef(2), PortRef(1))) == "union@a+b"
    assert name(inputs=(PortRef(1), PortRef(0))) == "union@b+a"


def test_two_unions_of_the_same_streams_have_two_names() -> None:
    first = Union(id=2, origin=HERE, inputs=(PortRef(0), PortRef(1)))
    second = Union(id=3, origin=HERE, inputs=(PortRef(0), PortRef(1)))
    tasks = plan(read(0, "a"), read(1, "b"), first, second, write(4, PortRef(2), "x"), write(5, PortRef(3), "y"))
    assert [id for id in tasks if "union" in id] == ["union@a+b", "union@a+b#2"]


def test_a_union_of_a_side_output_names_the_port() -> None:
    parse = ParseJson(id=1, origin=HERE, inputs=(PortRef(0),), column="v", schema="a INT", on_error="split")
    both = Union(id=2, origin=HERE, inputs=(PortRef(1), PortRef(1, "bad")))
    assert "union@in+in.bad" in plan(read(0), parse, both, write(3, PortRef(2)))
