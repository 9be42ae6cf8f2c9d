"""What the ledger reads off an entry of the log."""

from __future__ import annotations

from penstock.checkpoint.entries import Claim, Entry, Manifest, Rewind


def positions(manifest: Manifest) -> dict[int, int]:
    return {
        int(task.task.removeprefix("source")): int(task.position.detail)  # type: ignore[arg-type]
        for task in manifest.tasks
        if task.position is not None
    }


def layer_paths(manifest: Manifest) -> set[str]:
    return {ref.path for task in manifest.tasks if task.state for layer in task.state.layers for ref in layer.files}


def brief(entry: Entry) -> str:
    match entry.body:
        case Manifest() as m:
            opened = [(item.uid, item.checkpoint) for item in m.open]
            return f"checkpoint {m.checkpoint} {m.kind.value} at {positions(m)} open {opened} condemns {m.condemned}"
        case Claim(host=host):
            return f"claim by {host}"
        case Rewind() as r:
            return f"rewind to {r.to} discards {[(i.uid, i.checkpoint) for i in r.discard]} condemns {r.condemned}"
        case other:
            return str(other)
