"""What a receiver may store, as Arrow tables of the declared columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.connectors.receivers.rows import RowStore


class Taken:
    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def add(self, table: pa.Table, *, reliably: bool) -> None:
        self.tables.append(table)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([b"one", b"two"], pa.binary()),
        ([b"one", ("two",), {"value": "three"}], pa.string()),
        (["one"], pa.string()),
        (pa.table({"value": ["one"]}), pa.string()),
    ],
)
def test_bytes_or_text_are_a_row_of_the_only_column(rows, kind):
    taken = Taken()
    RowStore(pa.schema([("value", kind)]), taken).store(rows)
    found = [
        str(value, "ascii") if isinstance(value, bytes) else value for value in taken.tables[0]["value"].to_pylist()
    ]
    assert found == ["one", "two", "three"][: len(found)]
    assert taken.tables[0].schema.field("value").type == kind
