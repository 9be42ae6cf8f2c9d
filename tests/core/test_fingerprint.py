"""Digests of a graph's steps: the same for the same code, another for whatever would change a row."""

import subprocess
import sys
import textwrap

import pytest

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
    made = []

    def of(source):
        made.append(f"printed_{tmp_path.name.replace('-', '_')}_{len(made)}")
        (tmp_path / f"{made[-1]}.py").write_text(source)
        return fingerprint(load_pipeline(f"{made[-1]}:orders").graph())

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


def test_another_process_with_another_seed_of_hashes_finds_the_same(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    script = textwrap.dedent("""
        import json
        from penstock.cli.options import load_pipeline
        from penstock.graph.fingerprint import fingerprint
        print(json.dumps(fingerprint(load_pipeline("shop:orders").graph())))
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
        for seed in ("1", "2", "3")
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
