"""The throttle on a queue and the tokens that it leaves, in plain numbers."""

from __future__ import annotations

import pytest

from rollforward.local.cloudtasks.delivery.rates import Throttle, TokenBucket


def test_answers_of_one_second_halve_the_rate_once() -> None:
    """A burst of refusals is one reason to slow down, not as many as it has answers."""
    throttle = Throttle()

    factors = []
    for now in (0.0, 0.5, 0.9, 1.0):
        throttle.slow_down(now, 0.0)
        factors.append(throttle.factor)

    assert factors == [0.5, 0.5, 0.5, 0.25]


def test_a_later_answer_does_not_shorten_the_time_that_an_earlier_one_named() -> None:
    """A worker that asked for a minute gets it, although another one names no time."""
    throttle = Throttle()
    throttle.slow_down(0.0, 60.0)
    throttle.slow_down(5.0, 0.0)

    factors = []
    for now in (59.9, 60.0, 62.0):
        throttle.recover(now)
        factors.append(throttle.factor)

    assert factors == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(("factor", "tokens"), [(1.0, 8.0), (0.25, 2.0), (1 / 64, 1.0)])
def test_a_slow_queue_saves_fewer_tokens(factor: float, tokens: float) -> None:
    """Else a pause would end in a burst of the full size; one token is always possible."""
    bucket = TokenBucket(rate_per_s=10.0, burst=8, tokens=0.0, filled_at=0.0)

    bucket.fill(1_000.0, factor)

    assert bucket.tokens == tokens
