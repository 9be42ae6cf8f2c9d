"""Digests of a graph's steps: a start from a saved plan uses them to detect changed code."""

from __future__ import annotations

import functools
import json
import re
import sysconfig
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.graph.nodes import CallSite, Graph, Keyed, Node, Read, RowWise, TableRef, Write, is_column

_LIBRARY_PATHS: Final = (
    str(Path(__file__).resolve().parent.parent) + "/",
    sysconfig.get_path("stdlib") + "/",
    "<frozen",
)
"""How file names of library code begin, apart from installed packages: penstock's own, and Python's."""

_JAVA_ADDRESS: Final = re.compile(r"\[L[\w.$]+;@[0-9a-f]+")
"""A Java array in the text of a Column with a UDF: it stands there by its address, which differs each time."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, date, timedelta, timezone, Decimal, PurePath, range)
"""Types of values whose ``repr`` holds all of them, and is the same in every process."""

_MODULE_VALUES: Final = (
    *(*_PLAIN, time, ZoneInfo, re.Pattern, Enum, tuple, frozenset),
    *(ModuleType, MethodType, functools.partial),
)
"""Types of values that are covered where code uses them from its module; functions are chosen one by one."""

_UDFS: Final = frozenset({"UserDefinedFunction", "UserDefinedTableFunction"})


def fingerprint(graph: Graph) -> dict[str, str]:
    """Return a digest of each step, by its uid or, for a step without one, by its verb.

    Two processes that read the same code with the same Python get the same digests; moved lines and comments do not
    change them. A digest covers a step's arguments, the code of its functions with their defaults and closures, and
    the plain values and user functions that these use from their modules. It covers only the type of any other object,
    and only the names of what comes from Python, installed packages and penstock. Code of the user that is installed as
    a package counts as installed, too.

    >>> import penstock as ps
    >>> def digests(condition):
    ...     p = ps.Pipeline("demo")
    ...     p.read("numbers", ps.rate.Source(10)).where(condition).write("even", ps.console.Sink())
    ...     return fingerprint(p.graph())
    >>> list(digests("value > 1"))
    ['numbers', 'where', 'even']
    >>> digests("value > 1") == digests("value > 1"), digests("value > 1") == digests("value > 2")
    (True, False)
    """
    names: dict[int, str] = {}
    for node in graph.nodes:
        name = _name(node)
        same = sum(other == name or other.startswith(f"{name} #") for other in names.values())
        names[node.id] = f"{name} #{same + 1}" if same else name
    return {names[node.id]: _digest(node, names) for node in graph.nodes}


def changed_steps(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between two fingerprints in words; an empty list if there are none.

    >>> changed_steps({"totals": "a", "out": "b"}, {"totals": "c", "where": "d"})
    ["'totals' was changed", "'where' is new", "'out' is gone"]
    """
    changed = [f"'{name}' was changed" for name in now if name in before and before[name] != now[name]]
    new = [f"'{name}' is new" for name in now if name not in before]
    return [*changed, *new, *(f"'{name}' is gone" for name in before if name not in now)]


def _name(node: Node) -> str:
    match node:
        case Read(uid=uid) | Keyed(uid=uid) | Write(uid=uid):
            return uid
        case RowWise(verb=verb):
            return verb
        case _:
            return type(node).__name__


def _digest(node: Node, names: Mapping[int, str]) -> str:
    common = {"type": type(node).__name__, "inputs": [[names[ref.node], ref.port] for ref in node.inputs]}
    canonical = _Canonicalizer()
    left_out = ("id", "origin", "inputs", "text")  # the text of a step is for people: its content is in ``build``
    covered = [field.name for field in fields(node) if field.name not in left_out]
    values = {name: canonical.of(getattr(node, name)) for name in covered}
    return sha256(_json_text({**common, **values}).encode()).hexdigest()[:16]


class _Canonicalizer:
    """Turns values into JSON values that are the same in every process.

    A function or object that comes again is only numbered, so that cycles end.

    Args:
        seen: the objects that came before, by ``id``. They are kept, so that no other object gets the ``id`` of one.
    """

    def __init__(self, seen: Mapping[int, object] | None = None) -> None:
        self._seen: dict[int, object] = dict(seen or {})

    def of(self, value: object) -> object:  # noqa: PLR0911 - one case a kind of value
        match value:
            case Enum():
                return [type(value).__qualname__, value.name]
            case datetime() | time():  # the text of a time zone may hold an address
                return [type(value).__name__, value.isoformat(), self.of(value.tzinfo)]
            case ZoneInfo():
                return ["ZoneInfo", value.key]
            case re.Pattern():  # its text is cut
                return ["Pattern", self.of(value.pattern), value.flags]
            case CallSite():
                return None
            case Mapping():
                pairs = sorted(((self._apart(key), item) for key, item in value.items()), key=lambda pair: pair[0])
                return [type(value).__name__, [[key, self.of(item)] for key, item in pairs]]
            case list() | tuple():
                return [type(value).__name__, *map(self.of, value)]
            case set() | frozenset():
                return [type(value).__name__, *sorted(map(self._apart, value))]
            case TableRef():
                return self.of(value.table)
            case type():
                return ["class", value.__module__, value.__qualname__]
            case ModuleType():
                return ["module", value.__name__]
        if value is None or isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        return self._once(value)

    def _apart(self, value: object) -> str:
        """The text of a member of a set, or of a key: the same whichever other member came before it."""
        return _json_text(_Canonicalizer(self._seen).of(value))

    def _once(self, value: object) -> object:
        if id(value) in self._seen:
            return ["again", type(value).__qualname__, list(self._seen).index(id(value))]
        self._seen[id(value)] = value
        match value:
            case FunctionType():
                return self._function(value)
            case MethodType():
                return ["method", self.of(value.__func__), self.of(value.__self__)]
            case functools.partial():
                return ["partial", self.of(value.func), self.of(value.args), self.of(value.keywords)]
        return self._object(value)

    def _object(self, value: Any) -> object:
        kind = type(value)
        name = [kind.__module__, kind.__qualname__]
        if is_column(value):
            return [*name, _JAVA_ADDRESS.sub("", str(value))]
        if _is_cached(value):
            return [*name, self.of(value.__wrapped__)]
        if _is_udf(value):  # its other attributes change with its first call
            parts = (value.func, value._returnType, value.evalType, value.deterministic)  # noqa: SLF001 - as declared
            return [*name, self.of(parts)]
        if hasattr(value, "jsonValue") and kind.__module__.startswith("pyspark."):  # a schema
            return [*name, value.jsonValue()]
        has_call = isinstance(getattr(kind, "__call__", None), FunctionType)  # noqa: B004 - its code is needed
        state: object = None
        if is_dataclass(value):
            state = {field.name: self.of(getattr(value, field.name, None)) for field in fields(value)}
        elif has_call:
            state = self.of(getattr(value, "__dict__", None))
        return [*name, state, self.of(kind.__call__) if has_call else None]

    def _function(self, function: FunctionType) -> object:
        closure = [self.of(_cell_content(cell)) for cell in function.__closure__ or ()]
        bound = [closure, self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        if _is_library_code(function.__code__):
            wrapped = self.of(getattr(function, "__wrapped__", None))  # a UDF is Spark's function around the user's
            return ["function", function.__module__, function.__qualname__, *bound, wrapped]
        return ["function", self._code(function.__code__, function.__globals__), *bound]

    def _code(self, code: CodeType, module: Mapping[str, object]) -> object:
        constants = [
            self._code(each, module) if isinstance(each, CodeType) else self.of(each) for each in code.co_consts
        ]
        used = {name: self._module_value(module[name]) for name in sorted(code.co_names) if name in module}
        names = [*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars]
        parameters = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        handlers: bytes = getattr(code, "co_exceptiontable", b"")  # Python 3.10 has them in ``co_code``
        return [code.co_code.hex(), handlers.hex(), parameters, names, constants, used]

    def _module_value(self, value: object) -> object:
        """A value that code uses from its module: user functions and plain values by content, others by name."""
        if value is None or isinstance(value, _MODULE_VALUES) or _is_cached(value):
            return self.of(value)
        wrapped = getattr(value, "__wrapped__", None) if isinstance(value, FunctionType) else None
        if isinstance(value, FunctionType) and (wrapped is not None or not _is_library_code(value.__code__)):
            return self.of(value)
        return ["other", getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__qualname__)]


def _is_library_code(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith(_LIBRARY_PATHS) or "/site-packages/" in name or "/dist-packages/" in name


def _is_cached(value: object) -> bool:
    return type(value).__name__ == "_lru_cache_wrapper"


def _is_udf(value: object) -> bool:
    kind = type(value)
    return kind.__name__ in _UDFS and kind.__module__.startswith("pyspark.")  # by name: this does not load Spark


def _cell_content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the name is not bound yet
        return None


def _json_text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
