"""Planted bugs: pieces of state that are written before a checkpoint asks (L14, L23)."""

from __future__ import annotations

from penstock.state.durable import DurableLayers
from penstock.state.stack import Stack
from planted.bug import bug

CORE = "core/test_pieces.py"
"""The steps of the simulation keep no layers."""


@bug("piece-passes", "a piece is written while a snapshot is named that is not written yet", core=CORE, blind=True)
def _(put):
    put(Stack, "_may_write_pieces", lambda self: not (self._base or self._closed))


@bug("piece-spans", "rows that come while a piece is written count as written", core=CORE, blind=True)
def _(put):
    real = Stack.begin_piece

    def begin(self):
        scope = real(self)
        self._epoch -= scope is not None
        return scope

    put(Stack, "begin_piece", begin)


@bug("piece-rebased", "pieces are written of a layer that is replaced again and again", core=CORE, blind=True)
def _(put):
    put(Stack, "_may_write_pieces", lambda self: not (self._boundaries or self._closed))


@bug("piece-lost", "a piece is deleted that a snapshot has named", core=CORE, blind=True)
def _(put):
    real = DurableLayers.materialise

    def materialise(self, scope):
        handle = real(self, scope)
        self._unnamed |= {ref.name: ref for ref in handle.layers}
        return handle

    put(DurableLayers, "materialise", materialise)


@bug("piece-read", "a piece is deleted while a merge reads it", core=CORE, blind=True)
def _(put):
    real = DurableLayers._drop_dead

    def drop(self):
        names, self._merging_names = self._merging_names, frozenset()
        try:
            real(self)
        finally:
            self._merging_names = names

    put(DurableLayers, "_drop_dead", drop)


@bug("piece-kept", "a piece that no snapshot has named is never deleted", core=CORE, blind=True)
def _(put):
    real = DurableLayers._drop_dead

    def drop(self):
        self._unnamed = {}
        real(self)

    put(DurableLayers, "_drop_dead", drop)


@bug("piece-epoch", "a layer that was being made when a piece began counts as written with it", core=CORE, blind=True)
def _(put):
    def add(self, layer):
        self._layers.append(layer)
        return True

    put(Stack, "add", add)
