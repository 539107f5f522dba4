"""The retry policy of a failed task: its backoff, and the limits at which it is dropped.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2#retryconfig
"""

from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.protocol.messages import seconds_of

_MAX_SHIFT = 60  # 2**60 times any backoff is past every cap; more would only cost digits.


@dataclass(frozen=True)
class RetryPolicy:
    """A RetryConfig in plain numbers."""

    max_attempts: int
    max_retry_duration_s: float
    min_backoff_s: float
    max_backoff_s: float
    max_doublings: int

    def delay_s(self, retry: int) -> float:
        """Return the wait before the retry-th retry, which counts from 1.

        >>> policy = RetryPolicy(-1, 0, 10, 300, 3)
        >>> [policy.delay_s(retry) for retry in range(1, 9)]
        [10, 20, 40, 80, 160, 240, 300, 300]
        """
        doublings = min(retry - 1, self.max_doublings, _MAX_SHIFT)
        steps = max(1, retry - self.max_doublings)
        return min(self.min_backoff_s * 2**doublings * steps, self.max_backoff_s)

    def gives_up(self, attempts: int, first_attempt_age_s: float) -> bool:
        """Return whether a task that has failed so often, for so long, is dropped.

        Both limits must be used up. A limit that is not set (-1 attempts, or a duration of 0) does
        not count.
        """
        attempts_limited = self.max_attempts > 0
        duration_limited = self.max_retry_duration_s > 0
        if not attempts_limited and not duration_limited:
            return False
        attempts_used = not attempts_limited or attempts >= self.max_attempts
        duration_used = not duration_limited or first_attempt_age_s >= self.max_retry_duration_s
        return attempts_used and duration_used


def policy_of(queue_config: Any, task_config: Any | None = None) -> RetryPolicy:
    """Return the queue's policy, with the task's own values on top."""
    task = task_config

    def chosen_s(field: str) -> float:
        config = task if task is not None and task.HasField(field) else queue_config
        return seconds_of(getattr(config, field))

    return RetryPolicy(
        max_attempts=(task and task.max_attempts) or queue_config.max_attempts,
        max_retry_duration_s=chosen_s("max_retry_duration"),
        min_backoff_s=chosen_s("min_backoff"),
        max_backoff_s=chosen_s("max_backoff"),
        max_doublings=(task and task.max_doublings) or queue_config.max_doublings,
    )
