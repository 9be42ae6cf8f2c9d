"""What a run of pytest printed, read by those who run it for planted bugs and mutants."""


def first_failure(output: str) -> str:
    """Return the id of the first test that failed or could not be set up; ``""`` if none did.

    >>> first_failure("1 passed\\nFAILED tests/a.py::test_b - assert 1 == 2\\n")
    'tests/a.py::test_b'
    """
    told = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return told[0].split(" ", 1)[1].split(" - ")[0] if told else ""
