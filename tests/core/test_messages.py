"""`make messages` finds the texts that errors are raised with."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from messages import Message, all_messages, error_classes
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
MANY = 500
"""Fewer messages would mean that the search found little."""


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return all_messages()


def test_each_error_class_of_the_tree_is_raised_with_a_message_that_is_listed(messages: list[Message]) -> None:
    classes = {name for name in error_classes() if isinstance(getattr(errors, name, None), type)}
    assert classes - {message.error for message in messages} == WITHOUT_A_MESSAGE_OF_THEIR_OWN


def test_messages_are_for_people(messages: list[Message]) -> None:
    found = {message.place: faults for message in messages if (faults := list(unfit(message.text.strip())))}
    assert len(messages) > MANY
    assert found == {}


def unfit(text: str) -> Iterator[str]:
    """Yield what is wrong with any text."""
    if not text:
        yield "there is nothing to read"
    if "  " in text:
        yield "words are apart by more than one space"
    if text.endswith((",", ";")):
        yield "something is left out"


def test_messages_are_whole_sentences(messages: list[Message]) -> None:
    sentences = [
        message
        for message in messages
        if message.place.partition("/")[2].startswith(SENTENCES)
        and "connectors/files/" not in message.place
        and message.error not in ("AttributeError", "ValueError", "TypeError")  # Python's own form, or caught within
    ]
    found = {message.place: faults for message in sentences if (faults := list(unlike_sentences(message.text)))}
    assert len(sentences) > MANY
    assert found == {}


def unlike_sentences(text: str) -> Iterator[str]:
    """Yield what is wrong with a text of whole sentences, of which it may have several to choose from."""
    for each in text.split(" | "):
        if not _BEGINS.match(each):
            yield f"it does not begin as a sentence: {each}"
        if not each.endswith(_ENDS):
            yield f"it does not end as one: {each}"
        if re.search(r"; [a-z]", each):
            yield f"two sentences are one: {each}"


def test_a_fault_is_noticed() -> None:
    assert [len(list(unfit(text))) for text in ("", "Two  spaces.", "A, b,", "A.")] == [1, 1, 1, 0]
    assert [len(list(unlike_sentences(text))) for text in ("a.", "A", "A; b.", "A. | B", "A.")] == [1, 1, 1, 1, 0]
