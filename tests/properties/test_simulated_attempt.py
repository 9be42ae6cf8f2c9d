"""The simulation restates the order of an attempt, which needs Spark: read side by side, the two say the same.

What decides is the product's own in both; this is about what is called after what, and given which of its results.
"""

from __future__ import annotations

import ast
from pathlib import Path

import penstock.job.attempt
import penstock.job.decision
import simulation.process

CALLS = {
    "claim",
    "claimed",
    "decide_recovery",
    "execute_recovery",
    "AttemptBuilder",
    "build",
    "AttemptParts",
    "Coordinator",
    "ManifestWriter",
    "RunStarted",
}
DECIDED = ("recovery", "owned")
"""Of what the claim and the recovery have found the very same must be handed on."""

ONLY_OF_THE_PRODUCT = {
    # A simulated driver does not begin with --fresh; the rewind tool does. Nor does it carry out a saved plan.
    "claim": {"past_unreadable", "expect"},
    "RunStarted": {"settings"},
    # The steps of the simulation keep their columns.
    "decide_recovery": {"resolver"},
}

ONLY_OF_THE_SIMULATION = {
    # Exported folders lie on the simulated disk; those of the product are local ones.
    "execute_recovery": {"folders"},
}


def product_order() -> list[tuple[str, dict[str, str]]]:
    """Without the look before the claim, which only refuses what would be refused under it."""
    look, *rest = order(penstock.job.attempt, "Attempt", "open")
    assert look[0] == "decide_recovery"
    return rest


def functions(module: object) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


DECISION = functions(penstock.job.decision)
"""What an attempt and a plan share: what refuses a start, around the recovery that a simulation has too."""


class Order(ast.NodeVisitor):
    """The calls of a method in the order in which they return; methods of its class and the decision are followed."""

    def __init__(self, methods: dict[str, ast.FunctionDef]) -> None:
        self._methods = methods
        self.found: list[tuple[str, dict[str, str]]] = []

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_own = name in DECISION or (isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self")
        if is_own and name in self._methods:
            self.visit(self._methods[name])
        elif name in CALLS:
            given = {each.arg or "**": ast.unparse(each.value) for each in node.keywords}
            self.found.append((name, given))


def order(module: object, owner: str, method: str) -> list[tuple[str, dict[str, str]]]:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)} | DECISION
    seen = Order(methods)
    seen.visit(methods[method])
    return seen.found


def test_the_simulated_attempt_calls_the_same_in_the_same_order() -> None:
    product = [name for name, _ in product_order()]
    simulated = [name for name, _ in order(simulation.process, "Driver", "_wire")]
    assert product == simulated
    assert len(product) == len(CALLS)


def test_the_simulated_attempt_hands_on_the_same() -> None:
    product, simulated = product_order(), order(simulation.process, "Driver", "_wire")
    for (name, given), (_, restated) in zip(product, simulated, strict=True):
        known = given.keys() - ONLY_OF_THE_PRODUCT.get(name, set())
        assert known == restated.keys() - ONLY_OF_THE_SIMULATION.get(name, set()), name
        for field, value in given.items():
            if value.split(".")[0].removeprefix("bool(") in DECIDED:
                assert restated[field] == value, f"{name}({field}=…)"
