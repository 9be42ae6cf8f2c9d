"""Planted bugs of the rule that a file is removed once a complete checkpoint holds it, and not before."""

from __future__ import annotations

import os
from dataclasses import replace

from penstock.connectors.files import removal, remover
from penstock.connectors.files.listing import forget
from penstock.connectors.files.remover import FileRemover
from planted.bug import bug

CORE = "core/test_files_removal.py core/test_files_removal_any_order.py"


@bug("removed-at-poll", "a file is removed once it is planned, before a checkpoint holds it", core=CORE)
def _(put):
    real = FileRemover.remove

    def remove(self, position, *, most=remover.MOST_AT_ONCE):
        self._hold(position)
        return real(self, position, most=most)

    put(FileRemover, "remove", remove)


@bug("removed-at-barrier", "a file is removed once a checkpoint has begun, before it is complete", core=CORE)
def _(put):
    real = FileRemover.planned

    def planned(self, position):
        real(self, position)
        self._hold(position)

    put(FileRemover, "planned", planned)


@bug("forgotten-unmoved", "a position forgets files that may be removed, moved or not", core=CORE)
def _(put):
    real = FileRemover.remove

    def remove(self, position, *, most=remover.MOST_AT_ONCE):
        held = dict(self._held)
        after = real(self, position, most=most)
        return forget(after, [name for name, before in held.items() if after.done.get(name) == before])

    put(FileRemover, "remove", remove)


@bug("moved-unseen", "a file is moved whether or not it is the one that was read", core=CORE)
def _(put):
    def take(self, name, before, folder):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        os.rename(os.path.join(self._removal.root, name), os.path.join(folder, name))
        return True

    put(FileRemover, "_take", take)


@bug("unrecorded", "files are moved, and the record does not say so", core=CORE)
def _(put):
    real = removal.Removal.write

    def write(self, record):
        real(self, replace(record, start=0, read=0))

    put(removal.Removal, "write", write)


@bug("proof-deleted", "a moved file is deleted at once, while the newest checkpoint still names it", core=CORE)
def _(put):
    real = FileRemover._delete
    put(FileRemover, "_delete", lambda self, position: real(self, forget(position, position.done)))


@bug("superseded-takes-over", "a process takes the record from the one that has claimed its job since", core=CORE)
def _(put):
    real = FileRemover.__init__

    def begin(self, directory, context):
        real(self, directory, replace(context, generation=0))

    put(FileRemover, "__init__", begin)


@bug("numbers-lie", "a rewind goes on in the same lineage, though numbers mean other files from there", core=CORE)
def _(put):
    real = removal.RemovalRecord.branch
    put(
        removal.RemovalRecord,
        "branch",
        lambda self, lineage, position: replace(real(self, lineage, position), lineage=self.lineage),
    )
