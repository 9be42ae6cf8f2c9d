"""kill -9 while rows are received: every row that was acknowledged is published once, and one never sent twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crash.receiving import Client, Strike, judge, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

STRIKES = (
    Strike("received.block.before", 5),
    Strike("received.block.durable", 9),
    Strike("received.sealed", 1),
    Strike("received.clean.before", 2),
)


def test_each_acknowledged_row_is_published_once_whenever_the_job_is_killed(tmp_path: Path) -> None:
    client = Client()

    run(tmp_path, client, STRIKES)

    found = judge(tmp_path, client)
    assert found.acknowledged > 40
    assert client.sent > found.acknowledged
    assert (found.lost, found.repeated) == ([], [])


def test_a_receiver_that_answers_before_rows_are_durable_loses_some(tmp_path: Path) -> None:
    client = Client()

    run(tmp_path, client, STRIKES[:1], RECEIVED_EARLY="1")

    assert judge(tmp_path, client).lost != []
