"""What can be seen of a stream without running the job: its columns, and what it makes of a few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.graph.nodes import Ref
    from penstock.graph.pipeline import Pipeline


class Shown:
    """An output of a pipeline."""

    def __init__(self, pipeline: Pipeline, ref: Ref) -> None:
        self.pipeline = pipeline
        self.ref = ref

    @property
    def schema(self) -> StructType:
        """The columns. Uses the active Spark session, or starts a local one; nothing of the job runs."""
        from penstock.graph.analyze import analyze
        from penstock.graph.preview import local_session

        analysis = analyze(self.pipeline.graph(), local_session(), only=self.ref)
        analysis.close()
        return analysis.schema(self.ref)

    def print_schema(self) -> None:
        """Print the columns as Spark does."""
        print(self.schema.treeString())  # noqa: T201 - it is what was asked for

    def preview(self, rows: Sequence[Mapping[str, object]] | Mapping[str, Sequence[Mapping[str, object]]]) -> DataFrame:
        """What these steps make of some rows, as a Spark DataFrame; nothing of the job runs.

        Args:
            rows: of the source, as dictionaries. Where there are several sources, a dictionary of them by uid.

        >>> import penstock as ps
        >>> lines = ps.Pipeline("demo").read("lines", ps.files.Source("in/", format="text"))
        >>> lines.select("length(value) AS n").preview([{"value": "hello"}]).collect()
        [Row(n=5)]
        """
        from penstock.graph.preview import preview

        return preview(self.pipeline.graph(), self.ref, rows)
