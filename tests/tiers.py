"""Which tests are run when: `make test` before each change, `make test-long` in CI too, `make test-nightly` at night.

`tests/tiers.toml` lists the tests that are not in `make test`, by the beginning of their ids, and for each the tests
further in that keep its claim. Whatever is not listed is in `make test`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("tiers.toml")
TIERS = ("long", "nightly")


@dataclass(frozen=True)
class Outward:
    """Tests that are run in an outer tier: those whose id, from `tests/` on, begins with `tests`.

    `but`: beginnings of ids among them that stay in `make test`. `kept_by`: where the claim is proved further in.
    """

    tests: str
    tier: str
    kept_by: tuple[str, ...]
    but: tuple[str, ...] = ()

    def has(self, test: str) -> bool:
        """Whether the test with this id is one of them."""
        return test.startswith(self.tests) and not test.startswith(self.but or "\0")


def read_table() -> list[Outward]:
    """Return the table; of several rows that a test is in, the last counts."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["outward"]
    return [Outward(r["tests"], r["tier"], tuple(r["kept_by"]), tuple(r.get("but", ()))) for r in rows]


def tier_of(test: str, table: Iterable[Outward]) -> str | None:
    """Return the outer tier of a test, or `None` if it is in `make test`."""
    found = [row.tier for row in table if row.has(test)]
    return found[-1] if found else None
