"""The hundred mutants: small bugs in the data side, each a line that is replaced by another."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("list.toml")
PACKAGE = Path(__file__).resolve().parents[2] / "src" / "penstock"


@dataclass(frozen=True)
class Mutant:
    """A bug: in `file`, below the package, `old` stands once and is replaced by `new`; both differ in the last line."""

    id: str
    file: str
    old: str
    new: str

    def line(self) -> int:
        """Return the number of the line that changes; ValueError if `old` is not there, or more than once."""
        text = (PACKAGE / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            msg = f"Mutant '{self.id}': its old text is in {self.file} {text.count(self.old)} times, not once."
            raise ValueError(msg)
        return text[: text.index(self.old) + len(self.old)].count("\n") + 1

    def plant(self, package: Path) -> None:
        """Replace the line in a copy of the package."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def remove(self, package: Path) -> None:
        """Give the copy its own line back."""
        (package / self.file).write_bytes((PACKAGE / self.file).read_bytes())


def read_list() -> dict[str, Mutant]:
    """Return the mutants by their ids."""
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return {row["id"]: Mutant(**row) for row in rows}
