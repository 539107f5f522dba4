"""Faults that the service may show, on demand: by rate, by rule, and counted.

A rule matches tasks by queue, path and name, and fires with a probability:

    duplicate      a task that succeeded is delivered once more
    overlap        a task is delivered twice at the same time
    delay          a dispatch is held back by param seconds
    reorder        any due task may come next, not the oldest
    lose_response  the handler runs, its answer is lost: a failed attempt
    error          the answer is 500, the handler never runs
    kill_worker    the worker is killed param seconds into the attempt
"""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from rollforward.local.cloudtasks.protocol.names import is_named, short
from rollforward.local.cloudtasks.store.records import TaskRecord

KINDS = ("duplicate", "overlap", "delay", "reorder", "lose_response", "error", "kill_worker")
# Those that fail the attempt that they hit.
FAILING = ("error", "lose_response", "kill_worker")
DEFAULT_DELAY_S = 1.0


class FaultRuleError(ValueError):
    """A fault rule has a value that it cannot have."""


@dataclass
class FaultRule:
    """One rule; an empty match field matches everything.

    Attributes:
        rate: How likely it fires when it matches, 0 to 1.
        queue: The id of a queue; a short one is that queue of every place.
        path: A part of the request's path and query.
        task: A part of the task's short id.
        max_count: How often it fires at most; None is no limit.
        param: Seconds, for delay and kill_worker.
        fired: How often it has fired.
    """

    id: str
    kind: str
    rate: float = 1.0
    queue: str = ""
    path: str = ""
    task: str = ""
    max_count: int | None = None
    param: float | None = None
    fired: int = field(default=0)

    def matches(self, task: TaskRecord) -> bool:
        """Return whether this rule is about the task."""
        return (
            (not self.queue or is_named(task.queue, self.queue))
            and self.path in task.path
            and self.task in short(task.name)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rule for the control API."""
        return asdict(self)


class FaultBook:
    """The rules in force. Callers hold the engine's lock."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rules: dict[str, FaultRule] = {}
        self._last_id = 0

    def add(self, /, **values: Any) -> FaultRule:
        """Add a rule, under a new id when it brings none.

        Raises:
            FaultRuleError: a value is of the wrong kind or out of range.
        """
        if not values.get("id"):
            self._last_id += 1
            values["id"] = f"fault-{self._last_id}"
        values.pop("fired", None)
        try:
            rule = FaultRule(**values)
        except TypeError as error:
            raise FaultRuleError(f"not a fault rule: {error}") from None
        _check(rule)
        self._rules[rule.id] = rule
        return rule

    def remove(self, rule_id: str) -> bool:
        """Take a rule out; tell whether it was there."""
        return self._rules.pop(rule_id, None) is not None

    def clear(self) -> None:
        """Take all rules out."""
        self._rules.clear()

    def all(self) -> list[FaultRule]:
        """Return the rules in the order they came."""
        return list(self._rules.values())

    def matching_rule(self, kind: str, task: TaskRecord) -> FaultRule | None:
        """Return the first rule of this kind that strikes the task now, counted."""
        for rule in self._rules.values():
            if rule.kind != kind or not rule.matches(task):
                continue
            if rule.max_count is not None and rule.fired >= rule.max_count:
                continue
            if rule.rate >= 1 or self._rng.random() < rule.rate:
                rule.fired += 1
                return rule
        return None

    def has(self, kind: str) -> bool:
        """Return whether any rule of this kind is in force."""
        return any(rule.kind == kind for rule in self._rules.values())

    def pick(self, count: int) -> int:
        """Return a random index below count."""
        return self._rng.randrange(count)


def _check(rule: FaultRule) -> None:
    if rule.kind not in KINDS:
        raise FaultRuleError(f"kind must be one of {', '.join(KINDS)}, not {rule.kind!r}")
    if not _is_number(rule.rate) or not 0 <= rule.rate <= 1:
        raise FaultRuleError(f"rate must be a number from 0 to 1, not {rule.rate!r}")
    for name in ("id", "queue", "path", "task"):
        if not isinstance(getattr(rule, name), str):
            raise FaultRuleError(f"{name} must be text")
    if rule.max_count is not None and (not isinstance(rule.max_count, int) or rule.max_count < 1):
        raise FaultRuleError(f"max_count must be a whole number above 0, not {rule.max_count!r}")
    if rule.param is not None and (not _is_number(rule.param) or rule.param < 0):
        raise FaultRuleError(f"param must be seconds, not {rule.param!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
