"""The Spark session of a command that reads but runs no job: what is there, or one for a while. Knows no command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.cli.engine import log_to_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.output import Output


@contextmanager
def session_for(output: Output, purpose: str) -> Iterator[SparkSession]:
    """The session that is there, left as it was; or one of our own, whose log goes to a file that is thrown away.

    Args:
        output: is told that Spark starts, for that takes its time.
        purpose: what a session of our own is called: ``state query``.
    """
    from penstock.job.session import make_session
    from penstock.state.sessions import current_session

    there = current_session()
    if there is not None:
        yield there.newSession()
        return
    output.note("starting Spark …", style="dim")
    with TemporaryDirectory(prefix="penstock-") as folder:
        log_to_file(purpose.replace(" ", "-"), folder)
        made = make_session(purpose)
        try:
            yield made
        finally:
            made.stop()
