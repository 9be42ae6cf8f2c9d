"""What recorded state may become: every move, every refusal with its reason, and what each layer says afterwards."""

import pytest

from penstock.errors import CheckpointUnreadable, StateIncompatible
from penstock.handles import ColumnAction, LayerRef, StateHandle
from penstock.interfaces.operator import StateSchema
from penstock.spark.sql import format_columns, parse_columns, spark_type, widens
from penstock.state.schema import IncompatibleSchema, column_changes, layer_columns, migrated, resolve_schema, schema_of

BOUNDS = "`window_start` timestamp, `window_end` timestamp"
BASE = f"`user` string, {BOUNDS}"
V1 = f"{BASE}, `x__sum` bigint, `low__min` int"
WINDOW = "tumbling 1 minute"


def layer(name="g1-000001", schema=None):
    detail = {"slices": 1, **({"schema": schema} if schema else {})}
    return LayerRef(name=name, level=0, rows=1, files=(), detail=detail)


def held(*layers, schema=V1, kind="window/1", window=WINDOW):
    return StateHandle(kind=kind, schema=schema, layers=layers, detail={"window": window})


def keeps(schema, *, kind="window/1", window=WINDOW):
    return StateSchema(kind=kind, schema=schema, window=window)


def acts(recorded, declared):
    """Only what does not stay as it is."""
    return [str(move) for move in column_changes(recorded, declared) if move.act is not ColumnAction.KEEP]


# ------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    "ddl",
    [
        V1,
        "`a,b` string, `c``d` array<struct<by:timestamp,value:decimal(10,2)>>, `e` map<string,array<int>>",
        "`iv` interval day to second, `t` string collate UTF8_LCASE",
    ],
)
def test_what_is_recorded_is_read_back_as_it_was(ddl):
    assert format_columns(parse_columns(ddl)) == ddl


@pytest.mark.parametrize("ddl", ["", "n LONG", "`a` struct<b:int", "`a", "`a` int,", "a` int"])
def test_what_is_not_written_so_is_refused(ddl):
    with pytest.raises(ValueError, match=r"is no column|does not end"):
        parse_columns(ddl)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("tinyint", "smallint"),
        ("smallint", "bigint"),
        ("float", "double"),
        ("decimal(10,2)", "decimal(11,2)"),
        ("decimal(10,2)", "decimal(12,4)"),
        ("array<int>", "array<bigint>"),
        ("map<string,float>", "map<string,double>"),
        ("struct<by:timestamp,value:int>", "struct<by:timestamp,value:bigint>"),
        ("array<struct<v1:string,v2:decimal(4,0)>>", "array<struct<v1:string,v2:decimal(8,0)>>"),
    ],
)
def test_a_type_becomes_one_that_holds_all_its_values_and_never_back(before, now):
    assert widens(before, now)
    assert not widens(now, before)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("int", "string"),
        ("bigint", "double"),
        ("bigint", "decimal(38,0)"),
        ("decimal(10,2)", "decimal(11,4)"),
        ("date", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("map<int,string>", "map<bigint,string>"),
        ("struct<v1:int>", "struct<v1:int,v2:int>"),
        ("struct<v1:int>", "struct<w1:bigint>"),
        ("array<int>", "int"),
        ("struct<a,b:int>", "struct<a,b:bigint>"),
        ("struct<a:b:int>", "struct<a:b:bigint>"),
    ],
)
def test_another_type_is_no_wider_one(before, now):
    assert not widens(before, now)


def test_names_within_a_type_are_quoted_for_spark():
    assert spark_type("array<struct<a-b:int,c:map<string,int>>>") == "array<struct<`a-b`:int,`c`:map<string,int>>>"


# --------------------------------------------------------------------------------------------------------------- moves


def test_the_same_columns_need_no_move_in_whatever_order():
    assert column_changes(V1, V1) == ()
    assert (
        column_changes(
            f"`a` int, `b` int, {BOUNDS}, `n__count` bigint", f"`b` int, `a` int, {BOUNDS}, `n__count` bigint"
        )
        == ()
    )
    assert column_changes(f"{BASE}, `low__min` int, `x__sum` bigint", V1) == ()


def test_aggregates_come_and_go_as_a_whole_and_types_get_wider():
    declared = f"{BASE}, `low__min` bigint, `mean__sum` double, `mean__count` bigint"
    assert acts(V1, declared) == [
        "widens low__min from int to bigint",
        "adds mean__sum double, from now on",
        "adds mean__count bigint, from now on",
        "drops x__sum bigint",
    ]


def test_a_name_in_other_letters_is_the_same_column():
    (move,) = [each for each in column_changes(V1, V1.replace("x__sum", "X__sum")) if each.recorded != each.declared]
    assert (move.act, move.recorded.name, move.declared.name) == (ColumnAction.KEEP, "x__sum", "X__sum")


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (V1.replace("`user` string", "`user` int"), r"The keys were user string and are user int"),
        (V1.replace("`user` string", "`who` string"), r"The keys were user string and are who string"),
        (V1.replace("`user` string, ", ""), r"The keys were user string and are none"),
        (f"`more` int, {V1}", r"The keys were user string and are more int, user string"),
        (
            V1.replace("window_", "pane_"),
            r"Rows were cut by window_start timestamp, window_end timestamp and are by pane",
        ),
        (V1.replace("x__sum` bigint", "x__sum` double"), r"Column 'x__sum' was bigint and would be double"),
        (V1.replace("low__min` int", "low__min` smallint"), r"Column 'low__min' was int and would be smallint"),
        (V1.replace("x__sum", "x__max"), r"Aggregate 'x' was kept as x__sum bigint and would be as x__max bigint"),
        (f"{V1}, `x__count` bigint", r"Aggregate 'x' was kept as x__sum bigint and would be as x__sum bigint, x__co"),
        ("`n` bigint", r"has none of the columns window_start, pane_start"),
    ],
)
def test_what_else_changes_is_refused_with_the_reason(declared, why):
    with pytest.raises(IncompatibleSchema, match=why):
        column_changes(V1, declared)


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(IncompatibleSchema, match="The two cannot be compared: 'n LONG' is no column"):
        column_changes("n LONG", V1)


# ------------------------------------------------------------------------------------------------------------ judgement


def test_a_refusal_has_both_sides_and_the_remedy():
    other = V1.replace("x__sum", "x__max")
    with pytest.raises(StateIncompatible) as error:
        resolve_schema(held(), keeps(other), uid="totals")
    text = str(error.value)
    assert text.startswith("step 'totals': ")
    for part in (V1, other, "give it another alias", "give the step a new uid and start it without its state"):
        assert part in text


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            keeps(V1, kind="sessions/1"),
            "holds state of kind 'window/1', but this step keeps 'sessions/1'. Give it another",
        ),
        (
            keeps(V1, window="tumbling 5 minutes"),
            "cut for windows 'tumbling 1 minute', but the pipeline declares 'tumbling 5 m",
        ),
    ],
)
def test_other_windows_and_other_kinds_are_refused(asked, why):
    with pytest.raises(StateIncompatible, match=why):
        resolve_schema(held(), asked, uid="totals")


def test_layers_of_an_older_schema_are_judged_too():
    narrow = layer(schema=V1.replace("low__min` int", "low__min` decimal(4,1)"))
    with pytest.raises(StateIncompatible, match=r"was decimal\(4,1\) and would be int"):
        resolve_schema(held(narrow), keeps(V1), uid="totals")


# ----------------------------------------------------------------------------------------------- what each layer says

V2 = f"{BASE}, `low__min` bigint, `n__count` bigint"


def test_after_a_move_each_layer_says_which_of_its_columns_count():
    moved = migrated(held(layer("a"), layer("b")), V2)
    assert moved.schema == V2
    assert [layer_columns(ref) for ref in moved.layers] == [f"{BASE}, `low__min` int"] * 2
    assert [ref.detail["slices"] for ref in moved.layers] == [1, 1]


def test_a_layer_that_was_written_since_says_nothing_until_the_next_move():
    old, new = layer("a", schema=f"{BASE}, `low__min` int"), layer("b")
    again = migrated(held(old, new, schema=V2), V2)
    assert again.layers == (old, new), "the same code again"
    assert [schema_of(again, ref) for ref in again.layers] == [f"{BASE}, `low__min` int", V2]


def test_what_was_dropped_once_stays_dropped_whatever_the_files_have():
    first = migrated(held(layer("a")), V2)
    back = migrated(first, f"{V2}, `x__sum` bigint")
    assert layer_columns(back.layers[0]) == f"{BASE}, `low__min` int"
    assert "adds x__sum bigint, from now on" in acts(layer_columns(back.layers[0]), back.schema)


def test_going_back_to_the_old_code_needs_no_move_for_the_layers_it_wrote():
    wide = V1.replace("low__min` int", "low__min` bigint")
    assert migrated(migrated(held(layer("a"), schema=V1), wide), wide).layers[0].detail["schema"] == V1
    with pytest.raises(IncompatibleSchema, match="was bigint and would be int"):
        column_changes(wide, V1)
    only = f"{BASE}, `x__sum` bigint"
    more = migrated(held(layer("a"), schema=only), f"{only}, `n__count` bigint")
    assert migrated(more, only).layers[0].detail == {"slices": 1}


def test_a_detail_that_is_not_ours_is_unreadable():
    with pytest.raises(CheckpointUnreadable, match="Layer g1-000001 says 7 of its columns"):
        layer_columns(LayerRef(name="g1-000001", level=0, rows=1, files=(), detail={"schema": 7}))
