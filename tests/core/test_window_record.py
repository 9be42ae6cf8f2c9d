"""What a checkpoint records of windows, by which their state is read without the pipeline: there and back as JSON."""

from __future__ import annotations

import json

import pytest

import penstock as ps
from penstock.errors import CheckpointUnreadable
from penstock.operators.windows.record import read_window, to_record

WINDOWS = [
    ps.tumbling("1 minute", offset="7 seconds", allowed_lateness="1 hour"),
    ps.tumbling("1 minute", time="processing"),
    ps.tumbling("1 week", timezone="Europe/Berlin"),
    ps.sliding("10 minutes", "1 minute", offset="3 seconds"),
    ps.sliding("1 day", "1 hour", timezone="Asia/Kolkata"),
    ps.cumulative("1 hour", "1 day"),
    ps.session("30 minutes", allowed_lateness="1 minute"),
    ps.session(by="CASE WHEN tv THEN INTERVAL 3 HOURS ELSE INTERVAL 30 MINUTES END"),
    ps.count_window(100),
    ps.global_window(),
    ps.global_window(every_rows=5),
]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.describe())
def test_every_kind_of_window_comes_back_as_it_was(window: object) -> None:
    assert read_window(json.loads(json.dumps(to_record(window, [], [])))) == window


@pytest.mark.parametrize(
    "record", [None, {}, {"window": {"kind": "spiral"}}, {"window": {"kind": "tumbling", "size": 1, "twist": 2}}]
)
def test_what_is_not_known_is_said_and_never_guessed(record: object) -> None:
    with pytest.raises(
        CheckpointUnreadable, match=r"which this penstock does not know. Read it with the version that wrote it"
    ):
        read_window(record)
