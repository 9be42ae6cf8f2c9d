"""The job whose replay is killed: lines of text, decoded; what cannot be is kept. ``LETTERS_SCHEMA`` is its version."""

from __future__ import annotations

import os

import penstock as ps


@ps.pipeline("letters")
def job(p: ps.Pipeline) -> None:
    lines = p.read("lines", ps.files.Source("in", format="text"))
    parsed, bad = lines.parse_json("value", os.environ["LETTERS_SCHEMA"], on_error="split")
    parsed.select("id", "CAST(amount AS DOUBLE) AS amount").write("out", ps.files.Sink("out", format="json"))
    bad.dead_letter("bad-lines")
