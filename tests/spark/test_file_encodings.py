"""Files in other encodings, and CSV whose records have several lines."""

from __future__ import annotations

import gzip

import pytest

import penstock as ps
from penstock.connectors.files import ranges
from penstock.connectors.files.source import Source
from penstock.errors import DecodeError
from spark.test_source_files import ask, drain, noop, open_, put

pytestmark = pytest.mark.spark


def rows_of(spark, folder, **options):
    batches, _ = drain(open_(spark, Source(folder, **options)))
    return [row for batch in batches for row in batch]


def failure_of(spark, folder, **options):
    reader = open_(spark, Source(folder, **options))
    with pytest.raises(Exception, match=r"penstock\.decode:") as failure:
        noop(reader.frame(ask(reader).plan))
    explained = ranges.explain(failure.value)
    assert isinstance(explained, DecodeError)
    return str(explained)


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_lines_are_read_in_their_encoding(spark, tmp_path, encoding):
    for format, text in (("text", "é1\né2\n"), ("json", '{"v": "é1"}\n\n{"v": "é2"}'), ("csv", "v\né1\r\n'é2'")):
        folder = tmp_path / format
        folder.mkdir()
        content = text.encode(encoding)
        put(folder, "a", content, at=1)
        put(folder, "b.gz", gzip.compress(content), at=2)
        options = {"encoding": encoding} | ({"header": "names", "quote": "'"} if format == "csv" else {})
        schema = None if format == "text" else "v STRING"
        assert rows_of(spark, folder, format=format, schema=schema, options=options) == [("é1",), ("é2",)] * 2


def test_a_file_that_is_not_in_its_encoding_fails_the_job_with_its_name(spark, tmp_path):
    path = put(tmp_path, "a.txt", "é".encode(), at=1)
    said = failure_of(spark, tmp_path, format="text", options={"encoding": "ascii"})
    assert said.startswith(f"{path}: it is not in its encoding: 'ascii' codec can't decode")
    assert "correct the option encoding" in said


def test_quoted_values_of_csv_may_have_line_breaks(spark, tmp_path):
    options = {"multiLine": True, "header": True}
    put(tmp_path, "a.csv", 'id,v\n1,"x\r\ny"\n\n2,z', at=1)
    put(tmp_path, "12:30.csv.gz", gzip.compress("id,v\r\n3,'é\n'\r\n".replace("'", '"').encode()), at=2)
    kind = {"format": "csv", "schema": "id INT, v STRING"}
    assert sorted(rows_of(spark, tmp_path, **kind, options=options)) == [(1, "x\r\ny"), (2, "z"), (3, "é\n")]

    other = tmp_path / "other"
    other.mkdir()
    put(other, "a.csv", 'v,none,id\n"é\n",0,1\n'.encode("utf-16"), at=1)
    put(other, "b.csv", 'id,v\n2,"\n"\n'.encode("utf-16"), at=2)
    options |= {"header": "names", "encoding": "utf-16"}
    assert sorted(rows_of(spark, other, **kind, options=options)) == [(1, "é\n"), (2, "\n")]


@pytest.mark.parametrize("record", ['x,"a\nb"', '"1\n"', '1,"a\nb",3'])
def test_a_malformed_record_of_several_lines_fails_the_job_with_its_file(spark, tmp_path, record):
    path = put(tmp_path, "a b.csv", f'1,"x\ny"\n{record}\n', at=1)
    said = failure_of(spark, tmp_path, format="csv", schema="id INT, v STRING", options={"multiLine": True})
    assert said.startswith(f"{path}: malformed CSV, or a field that is not of its declared type")
    assert record.partition("\n")[0] in said


def test_parse_csv_takes_a_value_of_several_lines(spark, tmp_path):
    sink = ps.memory.Sink("several-lines")

    @ps.pipeline("several")
    def several(p):
        lines = p.read("lines", ps.files.Source(tmp_path, format="text", bounded=True))
        text = lines.select("replace(value, '/', '\\n') AS value")
        text.parse_csv("value", "id INT, v STRING").write("out", sink)

    put(tmp_path, "a.txt", '1,"x/y"\n2,z\n', at=1)
    ps.Job(several, state=tmp_path / "state", spark=spark).run()
    assert [(row["id"], row["v"]) for row in sink.rows] == [(1, "x\ny"), (2, "z")]
