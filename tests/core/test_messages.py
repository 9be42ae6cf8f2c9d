"""`make messages` finds the texts that errors are raised with."""

from __future__ import annotations

import re

import pytest

from messages import all_messages, error_classes
from penstock import errors

# Raised by their subclasses only, or by code that is handed the class.
WITHOUT_A_MESSAGE_OF_THEIR_OWN = {"CheckpointError", "PenstockError", "StateError", "CommitUnknown", "SinkBackpressure"}

ENGINE = ("admin/", "checkpoint/", "cli/", "control/", "dead_letters/", "filesystem/", "graph/", "job/", "runtime/")
VALUES = ("clock.py", "codec.py", "errors.py", "failpoints.py", "handles.py", "settings.py")
DATA = ("api/", "compiler/", "connectors/", "formats/", "operators/", "spark/", "state/", "testing/")
SENTENCES = (*DATA, *ENGINE, *VALUES)
"""Where each message is whole sentences."""
_BEGINS = re.compile(r"[A-Z'\"{-]|ps\.|[a-z_]+(\(|=| of ps\.)|(penstock|rename|until|max_drift|key) ")
"""A capital, a quoted name, a value that is filled in, an option, or code: a call, a command, or an argument."""
_ENDS = (".", "?", "}")
"""An end of a sentence, or a text that brings one."""


def test_each_error_class_of_the_tree_is_raised_with_a_message_that_is_listed() -> None:
    classes = {name for name in error_classes() if isinstance(getattr(errors, name, None), type)}
    assert classes - {message.error for message in all_messages()} == WITHOUT_A_MESSAGE_OF_THEIR_OWN


@pytest.mark.parametrize("message", all_messages(), ids=lambda message: message.place)
def test_a_message_is_for_people(message) -> None:
    text = message.text.strip()
    assert text, "there is something to read"
    assert "  " not in text, "words are apart by one space"
    assert not text.endswith((",", ";")), "nothing is left out"


@pytest.mark.parametrize(
    "message",
    [
        message
        for message in all_messages()
        if message.place.partition("/")[2].startswith(SENTENCES) and "connectors/files/" not in message.place
    ],
    ids=lambda message: message.place,
)
def test_a_message_is_whole_sentences(message) -> None:
    if message.error in ("AttributeError", "ValueError", "TypeError"):
        return  # of Python's own form, or caught within penstock
    for text in message.text.split(" | "):
        assert _BEGINS.match(text), "it begins as a sentence"
        assert text.endswith(_ENDS), "it ends as one"
        assert not re.search(r"; [a-z]", text), "two sentences are two"
