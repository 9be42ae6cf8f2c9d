"""`make messages` finds the texts that errors are raised with."""

from __future__ import annotations

import re

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


# ---- the form of a message -------------------------------------------------------------------------------------------

DATA_SIDE = (
    "api/",
    "compiler/",
    "connectors/",
    "dead_letters/",
    "filesystem/",
    "formats/",
    "operators/",
    "spark/",
    "state/",
    "testing/",
)
CODE = ("penstock ", "rename ", "until ", "max_drift ", "key ")
"""What else a message may begin with: a command or an argument, as the user writes it."""
ENGINE = [each for each in all_messages() if not each.place.removeprefix("penstock/").startswith(DATA_SIDE)]


@pytest.mark.parametrize("message", ENGINE, ids=lambda message: message.place)
def test_a_message_is_made_of_whole_sentences(message) -> None:
    text = message.text.strip()
    fixed = text
    while (shorter := re.sub(r"\{[^{}]*\}", "…", fixed)) != fixed:
        fixed = shorter
    assert re.match(r"[A-Z…'\"-]", fixed) or fixed.startswith(CODE), "it begins with a capital, a value or code"
    assert fixed.endswith((".", "?", "…")), "it ends as a sentence does, or with the text of another"
    assert not re.search(
        r"[;:] (add|choose|export|give|leave|name|plan|put|read|restore|start|take|use|write)\b", fixed
    ), "the remedy is a sentence of its own"
    assert not re.search(r"\. [a-z]", fixed.replace("e.g. ", "").replace("penstock", "P")), (
        "each sentence begins with a capital"
    )
