"""Parts of the hash of the keys: which rows are in one, and which files of a durable layer have such rows.

A layer is written in slices, each in a folder of its own; each row falls into exactly one. Knows nothing of how rows
are read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.state.changing import changing, holds, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.handles import FileRef, LayerRef
    from penstock.state.layer import LayerFormat


@dataclass(frozen=True, slots=True)
class Slice:
    """Part ``number`` of ``count``, by the hash of :attr:`LayerFormat.sliced`; ``count`` is a power of two.

    So the rows of one of 8 slices are in one of 2, and one of 2 holds those of four of 8.
    """

    number: int
    count: int

    def meets(self, other: Slice) -> bool:
        """Whether a row may be in both.

        >>> [Slice(5, 8).meets(Slice(number, 2)) for number in range(2)]
        [False, True]
        """
        least = min(self.count, other.count)
        return self.number % least == other.number % least

    def condition(self, layers_format: LayerFormat) -> str:
        """In SQL, that a row is in it; its numbers change and compile nothing."""
        columns = ", ".join(quoted(column) for column in layers_format.sliced)
        modulus, wanted = (changing(value, beside=layers_format.end) for value in (self.count, self.number))
        return holds(f"pmod(CAST(hash({columns}) AS BIGINT), {modulus}) = {wanted}") if columns else "true"


def slices_of(ref: LayerRef, by: Sequence[str]) -> int:
    """In how many slices a durable layer lies, if they are parts of the hash of these columns; else one, of all."""
    match ref.detail:
        case {"slices": int(count), "by": list(columns)} if columns == [*by]:
            return count
        case _:
            return 1


def files_of(ref: LayerRef, part: Slice, by: Sequence[str]) -> list[FileRef]:
    """The files of a durable layer that may have rows of a slice: each lies in a folder with its slice's number."""
    count = slices_of(ref, by)
    if count == 1:
        return list(ref.files)
    return [file for file in ref.files if part.meets(Slice(int(file.path.split("/")[-2]), count))]
