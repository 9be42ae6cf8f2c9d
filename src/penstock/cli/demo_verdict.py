"""Tells how a demo ended: some of the windows beside what they must be, and one line that counts everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from penstock.cli.demo_orders import Totals, Window
    from penstock.cli.output import Output

SHOWN: Final = 8
"""Windows in the table."""


def tell_verdict(output: Output, expected: Totals, found: Totals) -> bool:
    """Show both; whether they are the same."""
    different = expected.differs(found)
    output.result(_table(expected, found, [*different, *sorted(expected.orders)][:SHOWN]))
    missing = sum(max(0, n - found.orders[w]) for w, n in expected.orders.items())
    doubled = sum(max(0, n - expected.orders[w]) for w, n in found.orders.items())
    verdict = (
        f"{expected.total:,} orders expected in {len(expected.orders)} windows, {found.total:,} found: "
        f"{missing:,} lost, {doubled:,} doubled; {found.bad} of {expected.bad} unreadable lines kept in bad/"
    )
    is_same = not different and expected.bad == found.bad
    output.result(Text(verdict, style="bold green" if is_same else "bold red"))
    return is_same


def _table(expected: Totals, found: Totals, windows: list[Window]) -> Table:
    table = Table(title="some of the windows", title_justify="left", header_style="bold", box=None)
    for name in ("user", "minute", "orders", "expected", "amount", "expected"):
        table.add_column(name, justify="left" if name in {"user", "minute"} else "right")
    for window in windows:
        table.add_row(
            *window,
            f"{found.orders[window]:,}",
            f"{expected.orders[window]:,}",
            f"{found.amount[window]:,.2f}",
            f"{expected.amount[window]:,.2f}",
        )
    return table
