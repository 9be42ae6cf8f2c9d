"""`make messages` finds the texts that errors are raised with."""

from __future__ import annotations

import pytest

from messages import all_messages, error_classes
from penstock import errors

# Raised by their subclasses only, or by code that is handed the class.
WITHOUT_A_MESSAGE_OF_THEIR_OWN = {"CheckpointError", "PenstockError", "StateError", "CommitUnknown", "SinkBackpressure"}


def test_each_error_class_of_the_tree_is_raised_with_a_message_that_is_listed() -> None:
    classes = {name for name in error_classes() if isinstance(getattr(errors, name, None), type)}
    assert classes - {message.error for message in all_messages()} == WITHOUT_A_MESSAGE_OF_THEIR_OWN


@pytest.mark.parametrize("message", all_messages(), ids=lambda message: message.place)
def test_a_message_is_for_people(message) -> None:
    text = message.text.strip()
    assert text, "there is something to read"
    assert "  " not in text, "words are apart by one space"
    assert not text.endswith((",", ";")), "nothing is left out"
