"""Descriptions of connectors and steps that are never opened: enough to build graphs."""

from typing import Any


class NoSource:
    """A source in name only."""

    guarantee: Any = None

    def schema(self, spark: Any) -> Any:
        raise AssertionError

    def open(self, context: Any, resume: Any) -> Any:
        raise AssertionError

    def describe(self) -> str:
        return "nothing"


class NoSink:
    """A sink in name only."""

    guarantee: Any = None

    def check(self, schema: Any) -> None:
        raise AssertionError

    def writer(self, context: Any) -> Any:
        raise AssertionError

    def stages_in(self, log_id: str, uid: str) -> Any:
        raise AssertionError

    def describe(self) -> str:
        return "nowhere"


class NoSpec:
    """A keyed step in name only."""

    kind = "none/1"

    def ports(self, inputs: Any) -> Any:
        raise AssertionError

    def open(self, context: Any, restored: Any) -> Any:
        raise AssertionError

    def describe(self) -> str:
        return "no step"
