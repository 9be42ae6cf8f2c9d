"""Which HTTP requests a webhook takes, decided from the head alone; and how many rows in a time."""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from penstock.clock import MonotonicTime
from penstock.connectors.secrets import SecretRef

# ---- requests and answers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: such as ``POST``.
        target: the path, as it was sent.
        headers: names in lower case, with their values.
    """

    method: str
    target: str
    headers: Sequence[tuple[str, str]] = ()

    def all(self, name: str) -> list[str]:
        """The values of a header."""
        return [value for found, value in self.headers if found == name]

    def get(self, name: str) -> str:
        """The value of a header that is there at most once; empty if it is not there."""
        return next(iter(self.all(name)), "")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What is answered: a status, a document, and more headers."""

    status: int
    document: Mapping[str, object]
    headers: Sequence[tuple[str, str]] = ()


def refused(status: int, why: str, *, retry_after: int | None = None, **headers: str) -> HttpAnswer:
    """The answer to a request of which nothing was stored.

    >>> refused(503, "The job restarts.", retry_after=1).headers
    (('Retry-After', '1'),)
    """
    more = [*headers.items(), *([("Retry-After", str(retry_after))] if retry_after is not None else [])]
    return HttpAnswer(status, {"error": why}, tuple((name.replace("_", "-"), value) for name, value in more))


RESTARTING: Final = refused(503, "The job is not ready. Send the request again.", retry_after=1)
"""The answer while no attempt of the job receives."""

# ---- what is taken ---------------------------------------------------------------------------------------------------

JSON: Final = frozenset({"application/json"})
JSON_LINES: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
)
ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
_ONCE: Final = ("authorization", "content-type", "content-encoding", "content-length", "host", "idempotency-key")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def content_type(head: RequestHead) -> str:
    """The media type of the body, without parameters.

    >>> content_type(RequestHead("POST", "/", [("content-type", "Application/JSON; charset=utf-8")]))
    'application/json'
    """
    return head.get("content-type").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Which requests are taken.

    Attributes:
        path: the only target.
        port: where it listens.
        checks_browsers: refuse what a page in a browser on this machine could send: another ``Host``, an ``Origin``.
        tokens: a request has to bear one of them, if there are any.
        max_body_bytes: most bytes of a body, also when it is decompressed.
    """

    path: str
    port: int
    checks_browsers: bool
    tokens: tuple[SecretRef, ...] = field(default=(), repr=False)
    max_body_bytes: int

    def refusal(self, head: RequestHead) -> HttpAnswer | None:
        """Why a request is refused, seen its head; ``None`` if it may send its body.

        Raises:
            ConnectorError: no token can be read now.
        """
        for name in _ONCE:
            if len(head.all(name)) > 1:
                return refused(400, f"Header {name} is there twice. Send it once.")
        return self._of_a_browser(head) or self._unauthorized(head) or self._elsewhere(head) or self._unfit(head)

    def _of_a_browser(self, head: RequestHead) -> HttpAnswer | None:
        if not self.checks_browsers:
            return None
        found = re.fullmatch(r"(.*?)(?::(\d+))?", head.get("host"))
        host, port = (found[1], found[2]) if found else ("", None)
        if not is_loopback(host.strip("[]").lower()) or port not in (None, str(self.port)):
            return refused(421, "The Host header is not this server's. Send requests to localhost.")
        if head.all("origin"):
            return refused(403, "Requests of web pages are refused. Send the request without an Origin header.")
        return None

    def _unauthorized(self, head: RequestHead) -> HttpAnswer | None:
        if not self.tokens:
            return None
        scheme, _, given = head.get("authorization").partition(" ")
        # Each token is compared to its end, whichever fits: time tells nothing about them.
        digest = sha256(given.strip().encode()).digest()
        fits = [hmac.compare_digest(digest, sha256(each.resolve().encode()).digest()) for each in self.tokens]
        if scheme.lower() == "bearer" and any(fits):
            return None
        return refused(401, "A valid token is missing. Send it as Authorization: Bearer.", WWW_Authenticate="Bearer")

    def _elsewhere(self, head: RequestHead) -> HttpAnswer | None:
        if head.target != self.path:
            return refused(404, "There is nothing at this path.")
        if head.method != "POST":
            return refused(405, "Only POST is possible.", Allow="POST")
        return None

    def _unfit(self, head: RequestHead) -> HttpAnswer | None:
        if content_type(head) not in JSON | JSON_LINES:
            return refused(415, "The body is not JSON. Send Content-Type: application/json or application/x-ndjson.")
        if head.get("content-encoding").strip().lower() not in ENCODINGS:
            return refused(
                415, "The Content-Encoding is unknown. Send gzip, deflate or none.", Accept_Encoding="gzip, deflate"
            )
        if head.all("idempotency-key") and not _KEY.fullmatch(head.get("idempotency-key")):
            return refused(
                400, "The Idempotency-Key is not possible. Send 1 to 255 characters of ASCII without spaces."
            )
        if int(head.get("content-length") or 0) > self.max_body_bytes:
            return too_large(self.max_body_bytes)
        return None


def too_large(most: int) -> HttpAnswer:
    """The answer to a body with more bytes than are taken."""
    return refused(413, f"The body has more than {most} bytes. Send fewer rows at once.")


# ---- the rate --------------------------------------------------------------------------------------------------------


class RowRate:
    """Takes a number of rows a second, on average; a request is taken whole, and the next ones wait for it.

    >>> rate = RowRate(100, MonotonicTime(0))
    >>> rate.take(250, MonotonicTime(0)), rate.wait(MonotonicTime(0)), rate.wait(MonotonicTime(2_000_000))
    (None, 2, 0)
    """

    def __init__(self, rows_per_second: int, now: MonotonicTime) -> None:
        self._rate = rows_per_second
        self._free = float(rows_per_second)  # a second's rows may come at once
        self._at = now

    def wait(self, now: MonotonicTime) -> int:
        """Seconds until rows are taken again; 0 if they are."""
        self._fill(now)
        return 0 if self._free > 0 else max(1, math.ceil(-self._free / self._rate))

    def take(self, rows: int, now: MonotonicTime) -> None:
        """Count rows that were taken."""
        self._fill(now)
        self._free -= rows

    def _fill(self, now: MonotonicTime) -> None:
        self._free = min(float(self._rate), self._free + (now - self._at) / 1_000_000 * self._rate)
        self._at = now
