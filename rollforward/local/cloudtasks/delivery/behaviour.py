"""Behaviour for which the reference gives no number: taken from a profile, or left out.

Without a profile the emulator dispatches at once and at a queue's full rate, as tests and most work
on a laptop want it. With a profile, a dispatch takes a moment, and a cold queue ramps up as the
documents advise.

Source: docs.cloud.google.com/tasks/docs/manage-cloud-task-scaling, read 2026-11-24.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:  # Most emulators have no profile.
    from rollforward.cloud_profile import Profile


@dataclass(frozen=True)
class Behaviour:
    """The behaviour beyond the rules of the reference.

    Attributes:
        dispatch_s: How long a due task waits until it is dispatched.
        allowed_per_s: The rate of a queue this many seconds after it was cold; None: its own.
        cold_after_s: A queue that has dispatched nothing for this long is cold.
    """

    dispatch_s: Callable[[], float] = lambda: 0.0
    allowed_per_s: Callable[[float], float] | None = None
    cold_after_s: float = math.inf

    @classmethod
    def like(cls, profile: "Profile | None") -> Self:
        """Return the behaviour of a profile; without one, nothing beyond the rules."""
        if profile is None:
            return cls()
        random = profile.random()
        return cls(
            lambda: profile.draw("dispatch", random),
            lambda elapsed_s: profile.allowed_per_s("queues", elapsed_s),
            profile["queues.idle_s"],
        )
