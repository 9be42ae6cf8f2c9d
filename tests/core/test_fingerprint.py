"""Digests of a graph's steps: the same for the same code, another for whatever would change a row."""

import subprocess
import sys
import textwrap

import pytest
from pyspark.sql.types import LongType
from pyspark.sql.udf import UserDefinedFunction

import penstock as ps
from penstock.cli.options import load_pipeline
from penstock.graph.fingerprint import changed_steps, fingerprint

SHOP = """\
import penstock as ps

RATE = 2
LIMITS = {1, 2, 3}


def rated(value):
    return value * RATE


def add_tax(frame, rate):
    names = [name for name in frame.columns if name not in {"a", "b"}]
    return frame.withColumn("tax", frame["value"] * rated(rate))


@ps.pipeline("orders")
def orders(p):
    numbers = p.read("in", ps.rate.Source(10))
    taxed = numbers.transform(add_tax, rate=3).where("value > 1")
    taxed.write("out", ps.console.Sink())
"""


@pytest.fixture
def digests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the next source may have the same size and time
    name = f"printed_{tmp_path.name.replace('-', '_')}"

    def of(source):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(source)
        return fingerprint(load_pipeline(f"{name}:orders").graph())

    return of


def changed(digests, old, new, source=SHOP):
    assert old in source
    return changed_steps(digests(source), digests(source.replace(old, new)))


TAX = "'transform' was changed"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("* rated(rate)", "+ rated(rate)", [TAX]),
        ("value * RATE", "value + RATE", [TAX]),
        ("RATE = 2", "RATE = 4", [TAX]),
        ('{"a", "b"}', '{"a", "c"}', [TAX]),
        ("ps.rate.Source(10)", "ps.rate.Source(11)", ["'in' was changed"]),
        ("value > 1", "value > 2", ["'where' was changed"]),
        ("rate=3", "rate=4", [TAX]),
        ('"out"', '"sink"', ["'sink' is new", "'out' is gone"]),
    ],
)
def test_what_would_change_a_row_is_named(digests, old, new, says):
    assert changed(digests, old, new) == says


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def rated", "# a comment\n\n\ndef rated"),
        ("LIMITS = {1, 2, 3}\n", ""),
        ("    taxed.write", "\n    taxed.write"),
        ("numbers", "rows"),
    ],
    ids=["comments", "what no step uses", "lines", "names in the pipeline's function"],
)
def test_what_changes_no_step_changes_no_digest(digests, old, new):
    assert changed(digests, old, new) == []


STEP = """\
import datetime as dt
import functools
import json as codec
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from zoneinfo import ZoneInfo

import penstock as ps


class Mode(Enum):
    FAST = 1
    SLOW = 2


@dataclass(frozen=True)
class Scaled:
    by: int

    def __call__(self, frame):
        return frame.where(f"value > {self.by}")


class Cleaner:
    def clean(self, value):
        return value * 6


@functools.lru_cache
def cached(value):
    return value * 7


def scaled(value, by):
    return value * by


SIX = functools.partial(scaled, by=6)
CLEAN = Cleaner().clean
WINDOW = dt.timedelta(hours=1)
PRICE = Decimal("1.5")
FOLDER = Path("in")
STEPS = range(3)
SINCE = dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
NAMES = re.compile("a+")
MODE = Mode.FAST


def step(frame, a, b):
    print(codec.dumps("x"), WINDOW, PRICE, FOLDER, STEPS, SINCE, NAMES, MODE, SIX(1), CLEAN(1), cached(1))
    try:
        left = frame.first
        right = frame.second
    except ValueError:
        pass
    return frame


ONE, TWO = (lambda value: value + 1), (lambda value: value + 2)


@ps.pipeline("orders")
def orders(p):
    stream = p.read("in", ps.rate.Source(10))
    stream = stream.transform(step, waits=dt.timedelta(seconds=1), functions=[ONE, TWO, ONE])
    stream.where("value > 1").transform(Scaled(3)).write("out", ps.console.Sink())
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import json as codec", "import pickle as codec"),
        ("(frame, a, b)", "(frame, a, *, b)"),
        ("(frame, a, b)", "(frame, a, *b)"),
        ("(frame, a, b)", "(frame, a, /, b)"),
        (
            "        right = frame.second\n    except ValueError:\n        pass\n",
            "    except ValueError:\n        pass\n    else:\n        right = frame.second\n",
        ),
        ("hours=1", "hours=2"),
        ('"1.5"', '"1.6"'),
        ('Path("in")', 'Path("out")'),
        ("range(3)", "range(4)"),
        ("2026, 1, 1", "2026, 1, 2"),
        ("Europe/Berlin", "Europe/Paris"),
        ('"a+"', '"a*"'),
        ("MODE = Mode.FAST", "MODE = Mode.SLOW"),
        ("value * by", "value + by"),
        ("scaled, by=6", "scaled, by=7"),
        ("value * 6", "value + 6"),
        ("value * 7", "value + 7"),
        ("seconds=1", "seconds=2"),
        ("[ONE, TWO, ONE]", "[ONE, TWO, TWO]"),
    ],
)
def test_what_a_step_uses_counts_whatever_it_is(digests, old, new):
    assert changed(digests, old, new, STEP) == [TAX]


def test_the_call_of_a_dataclass_counts_and_so_do_its_fields(digests):
    for old, new in (("value > {self.by}", "value < {self.by}"), ("Scaled(3)", "Scaled(4)")):
        assert changed(digests, old, new, STEP) == ["'transform #2' was changed"]


def tripled(value):
    return value * 3


def quadrupled(value):
    return value * 4


def test_a_udf_is_the_same_after_its_first_call_and_counts_with_its_function():
    def graph_with(function, **options):
        udf = UserDefinedFunction(function, LongType(), **options)
        rated = udf._wrapped()  # as F.udf() does, which needs a session if the type is text

        def rate(frame):
            return frame.withColumn("rated", rated("value"))

        p = ps.Pipeline("demo")
        p.read("in", ps.rate.Source(10)).transform(rate).write("out", ps.console.Sink())
        return udf, p.graph()

    udf, graph = graph_with(tripled)
    before = fingerprint(graph)
    udf._judf_placeholder = udf._returnType_placeholder = object()  # what the first call leaves

    assert fingerprint(graph) == before
    assert fingerprint(graph_with(tripled)[1]) == before
    for other in (graph_with(quadrupled), graph_with(tripled, evalType=101), graph_with(tripled, deterministic=False)):
        assert changed_steps(before, fingerprint(other[1])) == [TAX]


SETS = """

def shared(value):
    return value


def using(number):
    return lambda value: shared(value) + number


SOME = frozenset(using(number) for number in range(5))


@ps.pipeline("sets")
def sets(p):
    stream = p.read("in", ps.rate.Source(10)).transform(add_tax, rate=SOME)
    names = {name: using for name in {"a", "b", "c"}}
    stream.transform(add_tax, rate=[SOME, using, names, shared]).write("out", ps.console.Sink())
"""


def test_another_process_with_another_seed_of_hashes_finds_the_same(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP + SETS)
    script = textwrap.dedent("""
        import json
        import os
        from penstock.cli.options import load_pipeline
        from penstock.graph.fingerprint import fingerprint
        filler = [object() for _ in range(int(os.environ["PYTHONHASHSEED"]) * 7)]  # functions hash by their address
        print(json.dumps([fingerprint(load_pipeline(f"shop:{name}").graph()) for name in ("orders", "sets")]))
    """)

    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }

    assert len(said) == 1


class Column:
    """As PySpark's, which needs a JVM: what counts is its name and its text."""

    __module__ = "pyspark.sql.column"

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return f"Column<'{self.text}'>"


def test_where_the_jvm_has_put_a_part_of_a_column_does_not_count():
    def digests_of(text):
        p = ps.Pipeline("demo")
        p.read("in", ps.rate.Source(10)).with_column("taxed", Column(text)).write("out", ps.console.Sink())
        return fingerprint(p.graph())

    text = "taxed(UnresolvedAttribute(List(amount),None,false,Origin(Some([Ljava.lang.StackTraceElement;@1caf4491))))"
    assert digests_of(text) == digests_of(text.replace("1caf4491", "4c2acb05"))
    assert digests_of(text) != digests_of(text.replace("amount", "price"))
