"""Rate limits of a queue: its token bucket, and the throttle on it.

The throttle is the documentation's system throttling. Responses of an overloaded target slow the
whole queue down (`statuses.throttles`); it recovers step by step. The service does not publish its
numbers; these are ours, and small enough to be seen at work. It also slows a queue whose "rate of
errors is high". How high is not published either, and nothing is made up here: other failures bring
the backoff alone.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2#ratelimits
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

SLOW_STEP_S = 1.0
RECOVERY_STEP_S = 2.0
MIN_FACTOR = 1 / 64
# A token that rounding has shaved counts, or a clock that stands still would
# never let it go.
_WHOLE_TOKEN = 1.0 - 1e-6


@dataclass(slots=True)
class Throttle:
    """A factor on the queue's rate.

    Halved by a bad answer, at most once a second; doubled after two calm ones.
    """

    factor: float = 1.0
    changed_at: float = 0.0
    calm_from: float = 0.0

    def slow_down(self, now_s: float, retry_after_s: float) -> None:
        """Note an answer that asks for less traffic."""
        self.recover(now_s)
        if self.factor == 1.0 or now_s - self.changed_at >= SLOW_STEP_S:
            self.factor = max(MIN_FACTOR, self.factor / 2)
            self.changed_at = now_s
        # A worker that names a time is not asked for more before that time.
        self.calm_from = max(self.calm_from, now_s + max(retry_after_s, RECOVERY_STEP_S))

    @property
    def full_speed_at(self) -> float:
        """The time at which the whole rate is back, if no answer asks for less again."""
        steps = round(-math.log2(self.factor))
        return self.calm_from + max(0, steps - 1) * RECOVERY_STEP_S

    def recover(self, now_s: float) -> None:
        """Take one step back for each calm step since the last answer like that."""
        while self.factor < 1.0 and now_s >= self.calm_from:
            self.factor = min(1.0, self.factor * 2)
            self.calm_from += RECOVERY_STEP_S
            self.changed_at = now_s


@dataclass(slots=True)
class Ramp:
    """The share of its rate that a queue may use while it warms up.

    Attributes:
        allowed_per_s: The rate this many seconds after that; None: any.
        cold_after_s: A queue that has dispatched nothing for this long is cold.
    """

    allowed_per_s: Callable[[float], float] | None = None
    cold_after_s: float = math.inf
    began_at: float | None = None
    used_at: float = 0.0

    def factor(self, rate_per_s: float, now_s: float) -> float:
        """Return the share of a rate that is let through."""
        if self.allowed_per_s is None or rate_per_s <= 0:
            return 1.0
        is_cold = self.began_at is None or now_s - self.used_at >= self.cold_after_s
        elapsed_s = 0.0 if is_cold or self.began_at is None else now_s - self.began_at
        return min(1.0, self.allowed_per_s(elapsed_s) / rate_per_s)

    def use(self, now_s: float) -> None:
        """Note a dispatch."""
        if self.began_at is None or now_s - self.used_at >= self.cold_after_s:
            self.began_at = now_s
        self.used_at = now_s


@dataclass(slots=True)
class TokenBucket:
    """Tokens for dispatches: burst of them at most, rate_per_s new ones each second."""

    rate_per_s: float
    burst: int
    tokens: float
    filled_at: float

    def fill(self, now_s: float, factor: float) -> None:
        """Add the tokens that came since the last call, at factor of the rate."""
        elapsed_s = max(0.0, now_s - self.filled_at)
        room = max(1.0, self.burst * factor)
        self.tokens = min(room, self.tokens + elapsed_s * self.rate_per_s * factor)
        self.filled_at = now_s

    def has_token(self) -> bool:
        """Return whether a whole token is there."""
        return self.tokens >= _WHOLE_TOKEN

    def next_token_at(self, factor: float) -> float | None:
        """Return when a whole token is there; None when none will ever come."""
        if self.has_token():
            return self.filled_at
        if self.rate_per_s <= 0:
            return None
        return self.filled_at + (1.0 - self.tokens) / (self.rate_per_s * factor)
