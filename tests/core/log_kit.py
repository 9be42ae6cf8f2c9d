"""A job's directory made by hand: checkpoints without Spark, and output that really waits beside its target."""

from hashlib import sha256

from core.checkpoint_values import entries, keyed, layer, manifest, read_to, wrote
from penstock.checkpoint import paths
from penstock.checkpoint.entry_codec import encode
from penstock.control.client import JobDirectory
from penstock.handles import Committable, FileRef

JOB = "orders"


def write(folder, *bodies):
    for entry in entries(*bodies):
        path = folder / entry.job / paths.entry(entry.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(entry))


def staged(folder, checkpoint):
    """Output of a checkpoint as the files sink stages it."""
    target = folder / "out"
    path = target / ".penstock" / "log-1" / "out" / "0" / str(checkpoint) / "part.json"
    path.parent.mkdir(parents=True)
    content = f"row {checkpoint}".encode()
    path.write_bytes(content)
    ref = FileRef(path=str(path), length=len(content), sha256=sha256(content).hexdigest())
    moves = {str(path): f"{target}/part-{checkpoint}.json"}
    return Committable(
        uid="out", kind="files/1", checkpoint=checkpoint, target=str(target), files=(ref,), detail={"moves": moves}
    )


def checkpoint(number, parent=None, *, open=()):
    return manifest(number, parent, tasks=(read_to(number), keyed(layer("a")), wrote()), open=open)


def log(state):
    return JobDirectory(state, JOB).read()


def kinds(history):
    return [type(entry.body) for entry in history.entries]


def published(state):
    return sorted(path.name for path in (state / "out").glob("part-*"))
