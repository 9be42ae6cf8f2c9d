"""Options of a job as written outside: text, environment, arguments."""

import pytest

import penstock as ps
from penstock.errors import SettingsError
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.settings import Settings, read_settings


def test_barriers_align_nothing_is_controlled_and_no_marker_is_sent_unless_asked_for() -> None:
    settings = Settings()
    assert (settings.mode, settings.rate_control, settings.latency_every) == ("exactly-once", False, None)


def test_they_are_read_from_the_environment_and_from_arguments() -> None:
    environment = {
        "PENSTOCK_MODE": "at-least-once",
        "PENSTOCK_RATE_CONTROL": "True",
        "PENSTOCK_LATENCY_EVERY": "250 ms",
    }
    settings = read_settings({}, environment=environment)
    assert (settings.mode, settings.rate_control, settings.latency_every) == ("at-least-once", True, 250_000)
    settings = read_settings({"rate_control": False, "mode": "exactly-once"}, environment=environment)
    assert (settings.mode, settings.rate_control) == ("exactly-once", False)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mode": "at-most-once"}, "mode is 'at-most-once', but must be one of exactly-once, at-least-once"),
        ({"rate_control": "perhaps"}, "rate_control is 'perhaps', but must be one of False, True"),
        ({"rate_control": 1}, "rate_control is 1, but must be one of False, True"),
        (
            {"latency_every": "1 ms"},
            "latency_every is 1 millisecond, but must be at least 10 milliseconds. Write it with a unit",
        ),
        ({"latency": "1 s"}, "Setting 'latency' does not exist. Did you mean 'latency_every'"),
        ({"retained": "few"}, "Setting 'retained' is 'few': invalid literal"),
        ({"checkpoint_every": "soon"}, "Setting 'checkpoint_every' is 'soon': .* is not a length of time"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch is 0, but must be a whole number of at least 1"),
        ({"timezone": "Europe/Berlinn"}, "Time zone 'Europe/Berlinn' is not known.*Did you mean 'Europe/Berlin'"),
        (
            {"timezone": "+25:00"},
            r"Time zone '\+25:00' is not known. Give an IANA name such as 'Europe/Berlin'",
        ),
        ({"restart": "sometimes"}, "restart is 'sometimes', but must be one of exponential, fixed, rate, none"),
    ],
)
def test_what_is_impossible_is_refused_with_what_is_possible(given: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_settings(given, environment={})


@pytest.mark.parametrize(
    ("given", "meant"), [("Etc/UTC", "UTC"), ("GMT", "UTC"), ("+02:00", "+02:00"), ("Asia/Tokyo", "Asia/Tokyo")]
)
def test_a_time_zone_is_a_name_or_an_offset_and_utc_has_one_name(given: str, meant: str) -> None:
    assert read_settings({}, environment={"PENSTOCK_TIMEZONE": given}).timezone == meant


def test_a_sink_that_was_asked_for_more_than_the_mode_gives_is_refused() -> None:
    def graph(guarantee: str | None) -> object:
        p = ps.Pipeline("demo")
        p.read("in", ps.rate.Source(1)).write("out", ps.memory.Sink(), guarantee=guarantee)  # type: ignore[arg-type]
        return p.graph()

    with pytest.raises(ps.GraphError, match=r"'out' at .*exactly-once is asked for, but .* mode='at-least-once'"):
        validate_mode(graph("exactly-once"), Guarantee.AT_LEAST_ONCE)  # type: ignore[arg-type]
    validate_mode(graph("exactly-once"), Guarantee.EXACTLY_ONCE)  # type: ignore[arg-type]
    validate_mode(graph("at-least-once"), Guarantee.AT_LEAST_ONCE)  # type: ignore[arg-type]
    validate_mode(graph(None), Guarantee.AT_LEAST_ONCE)  # type: ignore[arg-type]
