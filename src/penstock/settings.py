"""Every option of a job with its default; the only reader of the environment.

Arguments override ``PENSTOCK_<OPTION>`` in the environment, which overrides the defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, cast
from zoneinfo import ZoneInfo, available_timezones

from penstock.clock import UTC, canonical_timezone, format_duration, parse_duration
from penstock.errors import GraphError, SettingsError, did_you_mean, sentence

PREFIX: Final = "PENSTOCK_"
_DURATIONS: Final = frozenset({"checkpoint_every", "checkpoint_timeout", "min_pause", "latency_every", "stop_timeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job runs. Durations are microseconds here, and written ``"5 seconds"`` or ``"5s"`` outside.

    Attributes:
        checkpoint_every: from one periodic checkpoint's trigger to the next.
        checkpoint_timeout: a checkpoint that is not complete after this time is aborted.
        min_pause: least time from a completed checkpoint to the next periodic one.
        tolerated_failures: checkpoints that may fail in a row before the job restarts.
        retained: complete checkpoints that stay restorable, the newest included.
        max_rows_per_batch: most rows a batch may hold, where the source can count them before reading.
        max_bytes_per_batch: most bytes a batch may hold.
        channel_capacity: batches that are queued on an edge before its sender pauses. With one, the next batch of a
            backlog is planned while one runs; more only make rows wait longer. Without a backlog, a source reads on
            when its last batch has been processed.
        stop_timeout: how long a stop waits for the last checkpoint and its output; then the job ends without them, and
            the next start continues from the last complete one. ``None`` waits for ever.
        restart: ``exponential``, ``fixed``, ``rate`` or ``none``.
        mode: ``exactly-once``, where inputs wait for each other's barriers, or ``at-least-once``, where none waits and
            rows may count twice after a restart.
        rate_control: cap each batch at the rows that earlier batches processed in a second, or in the interval of the
            source's pace; ``max_rows_per_batch`` holds too, and alone caps the first batches.
        latency_every: from one latency marker of a source to the next; ``None`` sends none.
        timezone: in which SQL reads and shows times, such as ``Europe/Berlin``. ``None`` takes the session's, and
            refuses to go on from a checkpoint of another zone.
    """

    checkpoint_every: int = 5_000_000
    checkpoint_timeout: int = 600_000_000
    min_pause: int = 0
    tolerated_failures: int = 0
    retained: int = 3
    max_rows_per_batch: int | None = None
    max_bytes_per_batch: int | None = 256 * 1024 * 1024
    channel_capacity: int = 1
    restart: str = "exponential"
    stop_timeout: int | None = None
    mode: str = "exactly-once"
    rate_control: bool = False
    latency_every: int | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "checkpoint_timeout", "retained", "channel_capacity"):
            self._at_least(name, 10_000 if name in _DURATIONS else 1)
        for name in ("min_pause", "tolerated_failures"):
            self._at_least(name, 0)
        for name in ("max_rows_per_batch", "max_bytes_per_batch"):
            if getattr(self, name) is not None:
                self._at_least(name, 1)
        for name in ("latency_every", "stop_timeout"):
            if getattr(self, name) is not None:
                self._at_least(name, 10_000)
        self._one_of("restart", RESTARTS)
        self._one_of("mode", MODES)
        self._one_of("rate_control", (False, True))
        if self.timezone is not None:
            _check_timezone(self.timezone)
            object.__setattr__(self, "timezone", canonical_timezone(self.timezone))

    def _one_of(self, name: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            msg = f"{name} is {value!r}, but must be one of {', '.join(map(str, choices))}."
            raise SettingsError(msg)

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return
        if is_duration(name):
            shown = format_duration(value) if type(value) is int else repr(value)
            msg = (
                f"{name} is {shown}, but must be at least {format_duration(least)}. Write it with a unit, as in '5 s'."
            )
        else:
            msg = f"{name} is {value!r}, but must be a whole number of at least {least}."
        raise SettingsError(msg)


RESTARTS: Final = ("exponential", "fixed", "rate", "none")
MODES: Final = ("exactly-once", "at-least-once")
_TEXTS: Final = frozenset({"restart", "mode", "timezone"})
_SWITCHES: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


_OFFSET: Final = re.compile(r"[+-](0\d|1[0-8]):[0-5]\d")


def _check_timezone(name: object) -> None:
    if isinstance(name, str) and (canonical_timezone(name) == UTC or _OFFSET.fullmatch(name)):
        return
    try:
        ZoneInfo(cast("str", name))
    except (TypeError, ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        example = "Give an IANA name such as 'Europe/Berlin', or an offset such as '+02:00'."
        hint = did_you_mean(str(name), available_timezones(), most=3, otherwise=example)
        msg = f"Time zone {name!r} is not known{hint}"
        raise SettingsError(msg) from error


def read_settings(arguments: Mapping[str, object], *, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment and from ``arguments``, which override it. Durations may be written as text.

    Raises:
        SettingsError: an unknown option (with the nearest name), or an impossible value.

    >>> read_settings({"checkpoint_every": "1 second"}, environment={}).checkpoint_every
    1000000
    """
    environment = os.environ if environment is None else environment
    known = {field.name for field in fields(Settings)}
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"Settings: {', '.join(sorted(known))}.")
            msg = f"Setting {name!r} does not exist{hint}"
            raise SettingsError(msg)
    outside = {name: environment[PREFIX + name.upper()] for name in known if PREFIX + name.upper() in environment}
    merged = {**outside, **{name: value for name, value in arguments.items() if value is not None}}
    return Settings(**{name: _value(name, value) for name, value in merged.items()})  # type: ignore[arg-type]


def is_duration(name: str) -> bool:
    """Whether a setting is a length of time, which is microseconds in ``Settings`` and text outside.

    >>> is_duration("checkpoint_every"), is_duration("retained")
    (True, False)
    """
    return name in _DURATIONS


def setting_text(name: str, value: object) -> str:
    """A setting for people.

    >>> setting_text("checkpoint_every", 5_000_000), setting_text("stop_timeout", None), setting_text("retained", 3)
    ('5 seconds', 'none', '3')
    """
    if value is None:
        return "none"
    return format_duration(value) if is_duration(name) and isinstance(value, int) else str(value)


def _value(name: str, value: object) -> object:
    if not isinstance(value, str) or name in _TEXTS:
        return value
    if name == "rate_control":
        return _SWITCHES.get(value.strip().lower(), value)
    try:
        return parse_duration(name, value) if name in _DURATIONS else int(value)
    except (GraphError, ValueError) as error:
        msg = f"Setting {name!r} is {value!r}: {sentence(error)}"
        raise SettingsError(msg) from error
