"""Names of steps: each occurs once in a flow."""

from __future__ import annotations

from rollforward.flows.errors import BadStepError

MAX_STEPS = 1_000
MAX_NAME_BYTES = 60


class StepNames:
    """The names that the code of a flow has used in this delivery."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._used

    def use(self, name: str) -> None:
        """Check a step's name, and note that it was used.

        Raises:
            BadStepError: no step may have it; the text says why.
        """
        is_text = isinstance(name, str) and name.isprintable()
        if not is_text or not name or len(name.encode()) > MAX_NAME_BYTES:
            raise BadStepError(
                f"a step's name must be printable and have 1 to {MAX_NAME_BYTES} bytes, "
                f"got {name!r:.100}"
            )
        if set(name) & set(":;|"):
            raise BadStepError(f"a step's name must not have : ; or |, got {name!r}")
        if name in self._used:
            raise BadStepError(
                f"two steps are called {name!r}: give each a name of its own, as in "
                'f"mail {number}" in a loop'
            )
        if len(self._used) >= MAX_STEPS:
            raise BadStepError(
                f"a flow has at most {MAX_STEPS:,} steps: work on many things in a batch, a "
                "continuation, or flows of their own"
            )
        self._used.add(name)
