"""What the README promises a new user, from the built wheel on, in less than five minutes."""

import pytest

from crash.newcomer import LIMIT, first_minutes, newcomer, tell

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_new_user_gets_from_the_wheel_to_exact_sums_after_a_kill_in_five_minutes():
    with newcomer() as user:
        first_minutes(user)
        assert tell(user) < LIMIT
