"""Names for checkpoints of a running job, given and taken between two manifests. Pure: decides, appends nothing."""

from __future__ import annotations

from penstock.checkpoint.control import ControlRequest, Kind
from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.history import History
from penstock.ids import WallTime


def why_unfit(request: ControlRequest, history: History) -> str | None:
    """Why the log, as it is now, does not let this be done; ``None`` if it does (rule L5)."""
    if request.kind is Kind.PIN and request.checkpoint not in history.restorable:
        known = ", ".join(map(str, history.restorable)) or "none"
        return f"checkpoint {request.checkpoint} cannot be restored, so it gets no name; restorable are: {known}"
    if request.kind is Kind.UNPIN and request.name not in history.pins:
        known = ", ".join(sorted(history.pins)) or "none"
        return f"no checkpoint is called {request.name!r}; there are: {known}"
    return None


def entry_of(request: ControlRequest, at: WallTime) -> Pin | Unpin:
    """What is appended for it."""
    assert request.name is not None  # checked by the codec
    if request.checkpoint is None:
        return Unpin(name=request.name, at=at, request=request.request)
    return Pin(
        name=request.name,
        checkpoint=request.checkpoint,
        at=at,
        owner=request.owner,
        expires=request.expires,
        request=request.request,
    )
