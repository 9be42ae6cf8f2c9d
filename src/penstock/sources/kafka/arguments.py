"""Checks what users say about a cluster, its topics and a group, and makes one form of it; pure, talks to no broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from penstock.durations import parse_duration
from penstock.errors import GraphError
from penstock.sources.kafka.stalls import Patience

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
Commit: TypeAlias = Literal["on-checkpoints", "periodic", "disabled"]
OnLostOffsets: TypeAlias = Literal["fail", "continue"]
ReadIn: TypeAlias = Literal["auto", "driver", "executors"]

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER: Final = re.compile(r"(?:\w+://)?(?:[\w.-]+|\[[0-9a-fA-F:.%]+\]):\d{1,5}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse what is not among the choices."""
    if value not in choices:
        msg = f"{name} is {value!r}, but must be one of {', '.join(repr(choice) for choice in choices)}"
        raise GraphError(msg)


def check_limit(name: str, value: object) -> None:
    """Refuse what is no limit."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        msg = f"{name} is {value!r}, but must be a whole number of at least 1, or None"
        raise GraphError(msg)


def parse_servers(servers: object) -> str:
    """``host:port``, with commas. No message shows what may be a password."""
    names = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        msg = f"servers must be text such as 'host:9092', or a list of such, got a {type(servers).__name__}"
        raise GraphError(msg)
    names = [name.strip() for name in names if name.strip()]
    if any("@" in name for name in names):  # shown by nobody: there may be a password before the sign
        msg = "servers are hosts and ports; a user's name and password go into options (sasl.username, sasl.password)"
        raise GraphError(msg)
    wrong = [name for name in names if not _SERVER.fullmatch(name)]
    if wrong or not names:
        msg = f"servers must name hosts with their ports, as in 'kafka-1:9092,kafka-2:9092'; got {servers!r}"
        raise GraphError(msg)
    return ",".join(names)


def parse_topics(topics: object, pattern: object) -> tuple[str, ...]:
    """The names, sorted; none if there is a pattern."""
    if (topics is None) == (pattern is None):
        msg = f"write either topics=['orders', …] or pattern='orders[.].*'; got topics={topics!r}, pattern={pattern!r}"
        raise GraphError(msg)
    if topics is None:
        try:
            re.compile(pattern)  # type: ignore[call-overload] # anything may have been given
        except (re.error, TypeError) as error:
            msg = f"pattern {pattern!r} is no regular expression: {error}"
            raise GraphError(msg) from error
        return ()
    if isinstance(topics, str) or not isinstance(topics, Sequence) or not topics:
        msg = f"topics must be a list of names, as in topics=['orders']; got {topics!r}"
        raise GraphError(msg)
    for topic in topics:
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            msg = (
                f"topic {topic!r} is not a possible name: Kafka takes 1 to 249 of the characters a-z, A-Z, 0-9, '.', "
                "'_' and '-'; for several topics at once write pattern="
            )
            raise GraphError(msg)
    return tuple(sorted(set(topics)))


def parse_group(group: object, start: object) -> str | None:
    """The name of the group, if any."""
    if group is None and start == "committed":
        msg = "start='committed' begins at the offsets of a consumer group: say which, group='…'"
        raise GraphError(msg)
    if group is not None and (not isinstance(group, str) or not group.strip()):
        msg = f"group must be the name of a consumer group, got {group!r}"
        raise GraphError(msg)
    return group


def parse_patience(warn: str, reopen: str, fail: str) -> Patience:
    """The three times of a stall, in order."""
    patience = Patience(
        warn=parse_duration("warn_stalled_after", warn, least=1),
        reopen=parse_duration("reopen_stalled_after", reopen, least=1),
        fail=parse_duration("fail_stalled_after", fail, least=1),
    )
    if not patience.warn <= patience.reopen <= patience.fail:
        msg = (
            f"warn_stalled_after {warn!r}, reopen_stalled_after {reopen!r} and fail_stalled_after {fail!r}: a stall is "
            "first told, then mended, then an error, so none may be shorter than the one before"
        )
        raise GraphError(msg)
    return patience
