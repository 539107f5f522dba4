"""queue.yaml: read, checked, and mapped to v2 queues as a deployment does it.

| queue.yaml                 | v2 Queue                                        |
| rate, "200/s"; 0           | max_dispatches_per_second; 0 pauses the queue   |
| bucket_size                | max_burst_size (5)                              |
| max_concurrent_requests    | max_concurrent_dispatches (1000)                |
| target                     | app_engine_routing_override: [version.]service  |
| task_retry_limit           | max_attempts: one more; absent is unlimited     |
| task_age_limit             | max_retry_duration                              |
| min/max_backoff_seconds    | min_backoff (0.1), max_backoff (3600)           |
| max_doublings              | max_doublings (16)                              |
| mode: pull                 | a pull queue, as v2beta2 makes it               |

A pull queue has a name and retry_parameters only, and of these the limits of retries and of age.
Its `acl`, which says who may lease, is read and not enforced.

Queues that the file does not name are paused, except `default`. A queue that
it names runs again, even if it was paused by hand, unless the file says
`resume_paused_queues: false`.

Source: cloud.google.com/tasks/docs/queue-yaml; for pull queues, which that page no longer has,
App Engine's SDK: google/appengine/api/taskqueue/taskqueue_stub.py, _QueueDetails.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.names import Place, is_queue_id, parent_of, short
from rollforward.local.cloudtasks.protocol.validation import complete_queue

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"(\d+(?:\.\d+)?)/([smhd])")
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_TARGET = re.compile(r"(?:([a-z0-9][a-z0-9-]*)\.)?([a-z0-9][a-z0-9-]*)")
_MAX_RATE = 500.0

_TOP_FIELDS = {"queue", "total_storage_limit", "resume_paused_queues"}
_QUEUE_FIELDS = {
    "name", "rate", "mode", "bucket_size", "max_concurrent_requests", "target", "retry_parameters",
}  # fmt: skip
_PULL_FIELDS = {"name", "mode", "retry_parameters", "acl"}
_MODES = ("push", "pull")
_RETRY_FIELDS = {
    "task_retry_limit", "task_age_limit", "min_backoff_seconds", "max_backoff_seconds",
    "max_doublings",
}  # fmt: skip


class QueueYamlError(Exception):
    """The file cannot be used; the text names file, queue and field."""


@dataclass(frozen=True)
class QueueYaml:
    """A file that was read and found right.

    Attributes:
        pull: The names of those queues whose tasks are leased.
    """

    queues: list[Any]
    pull: frozenset[str]
    resumes_paused: bool
    digest: str


def read(path: str | Path, place: Place) -> QueueYaml:
    """Read a queue.yaml.

    Raises:
        QueueYamlError: it is missing, not YAML, or a field has a wrong value.
    """
    import yaml  # An emulator that runs alone need not have such a file.

    try:
        raw = Path(path).read_bytes()
        top = _Fields(str(path), yaml.safe_load(raw) or {}, _TOP_FIELDS)
        entries = top.take("queue", _is_list, "a list of queues", [])
        queues = [_queue(str(path), index, entry, place) for index, entry in enumerate(entries)]
    # A ValueError is of a date that does not exist, or of a number that no queue can hold.
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise QueueYamlError(f"{path}: {error}") from error
    modes = zip(queues, entries, strict=True)
    _check_unique(str(path), queues)
    return QueueYaml(
        queues=queues,
        pull=frozenset(queue.name for queue, entry in modes if _is_pull(entry)),
        resumes_paused=top.take("resume_paused_queues", _is_bool, "true or false", True),
        digest=hashlib.sha256(raw).hexdigest(),
    )


def apply(engine: Engine, file: QueueYaml) -> bool:
    """Give the engine the queues of the file, unless this very file was applied last.

    So a restart keeps a queue paused that was paused by hand.

    Raises:
        QueueYamlError: a queue is there with tasks of the other mode; nothing changes.
    """
    if engine.queues.yaml_digest() == file.digest:
        return False
    states = {queue.name: queue.message.state for queue in engine.queues.all()}
    for queue in file.queues:
        if queue.name in states and engine.queues.is_pull(queue.name) != (queue.name in file.pull):
            raise QueueYamlError(
                f"queue {short(queue.name)}: mode: cannot change; delete the queue first"
            )
    for queue in file.queues:
        was_paused = states.get(queue.name) == messages.PAUSED
        if was_paused and not file.resumes_paused:
            queue.state = messages.PAUSED
        engine.queues.put_from_yaml(queue, is_pull=queue.name in file.pull)
    named = {queue.name for queue in file.queues}
    for name in states:
        is_here = parent_of(name) == engine.place.parent
        if is_here and name not in named and short(name) != "default":
            engine.queues.pause(name)
    engine.queues.set_yaml_digest(file.digest)
    return True


class _Fields:
    """The fields of one mapping; each error says where it is."""

    def __init__(self, where: str, content: Any, allowed: set[str], is_pull: bool = False) -> None:
        if not isinstance(content, dict):
            raise QueueYamlError(f"{where}: must be a mapping")
        for key in content:
            if key not in allowed:
                kind = "a pull queue" if is_pull else "queue.yaml"
                raise QueueYamlError(f"{where}: {key}: is not a field of {kind}")
        self.where = where
        self._content = content

    def __contains__(self, field: str) -> bool:
        return self._content.get(field) is not None

    def take(
        self, field: str, is_valid: Callable[[Any], bool], condition: str, default: Any
    ) -> Any:
        """Return a field's value, or the default when it is absent."""
        if field not in self:
            return default
        value = self._content[field]
        if not is_valid(value):
            raise self.error(field, f"must be {condition}, not {value!r}")
        return value

    def error(self, field: str, problem: str) -> QueueYamlError:
        return QueueYamlError(f"{self.where}: {field}: {problem}")


def _queue(path: str, index: int, entry: Any, place: Place) -> Any:
    name = entry.get("name") if isinstance(entry, dict) else None
    is_pull = _is_pull(entry)
    allowed = _PULL_FIELDS if is_pull else _QUEUE_FIELDS
    fields = _Fields(f"{path}: queue {name or f'number {index + 1}'}", entry, allowed, is_pull)
    fields.take("mode", lambda v: v in _MODES, "push or pull", "push")
    if not isinstance(name, str) or not is_queue_id(name):
        raise fields.error("name", "must be 1 to 100 letters, digits or hyphens")
    queue = messages.Queue(name=place.queue_name(name), state=messages.RUNNING)
    if is_pull:
        _set_retries(fields, queue.retry_config)
        return complete_queue(queue, is_pull)
    rate = _rate(fields)
    queue.rate_limits.max_dispatches_per_second = rate
    if rate == 0:
        queue.state = messages.PAUSED
    queue.rate_limits.max_burst_size = fields.take("bucket_size", _integer(0, 500), "0 to 500", 5)
    queue.rate_limits.max_concurrent_dispatches = fields.take(
        "max_concurrent_requests", _integer(1, 5000), "1 to 5000", 1000
    )
    _set_target(fields, queue)
    _set_retries(fields, queue.retry_config)
    return queue


def _is_pull(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("mode") == "pull"


def _rate(fields: _Fields) -> float:
    if "rate" not in fields:
        raise fields.error("rate", "is missing")
    text = str(fields.take("rate", lambda v: not isinstance(v, bool), "like 5/s", ""))
    match = _RATE.fullmatch(text.replace(" ", ""))
    if match is None and text != "0":
        raise fields.error("rate", f"must be like 5/s, 10/m, 100/h, 2/d or 0, not {text!r}")
    rate = float(match[1]) / _UNIT_S[match[2]] if match else 0.0
    if rate > _MAX_RATE:
        raise fields.error("rate", f"must be at most 500/s, not {text}")
    return rate


def _set_target(fields: _Fields, queue: Any) -> None:
    target = fields.take("target", lambda v: isinstance(v, str), "text", "")
    if not target:
        return
    match = _TARGET.fullmatch(target)
    if match is None:
        raise fields.error("target", f"must be service or version.service, not {target!r}")
    queue.app_engine_routing_override.service = match[2]
    queue.app_engine_routing_override.version = match[1] or ""


def _set_retries(fields: _Fields, config: Any) -> None:
    content = fields.take("retry_parameters", lambda v: isinstance(v, dict), "a mapping", {})
    retry = _Fields(f"{fields.where}: retry_parameters", content, _RETRY_FIELDS)
    limit = retry.take("task_retry_limit", _integer(0, None), "a whole number", None)
    config.max_attempts = -1 if limit is None else limit + 1
    if age_s := _age_s(retry):
        messages.set_seconds(config.max_retry_duration, age_s)
    min_s = retry.take("min_backoff_seconds", _is_seconds, "seconds", None)
    max_s = retry.take("max_backoff_seconds", _is_seconds, "seconds", None)
    if min_s is not None and max_s is not None and min_s > max_s:
        raise retry.error("min_backoff_seconds", "must not be above max_backoff_seconds")
    # If only one of the two is given, the other's default gives way to it.
    low_s = min_s if min_s is not None else min(0.1, 0.1 if max_s is None else max_s)
    high_s = max_s if max_s is not None else max(3600.0, low_s)
    messages.set_seconds(config.min_backoff, low_s)
    messages.set_seconds(config.max_backoff, high_s)
    config.max_doublings = retry.take("max_doublings", _integer(0, None), "a whole number", 16)


def _age_s(retry: _Fields) -> float:
    text = retry.take("task_age_limit", lambda v: isinstance(v, str), "like 2d", "")
    if not text:
        return 0.0
    match = _AGE.fullmatch(text)
    if match is None:
        raise retry.error("task_age_limit", f"must be like 30s, 10m, 12h or 2d, not {text!r}")
    return float(match[1]) * _UNIT_S[match[2]]


def _check_unique(path: str, queues: list[Any]) -> None:
    seen: set[str] = set()
    for queue in queues:
        if queue.name in seen:
            raise QueueYamlError(f"{path}: queue {short(queue.name)}: name: is there twice")
        seen.add(queue.name)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _integer(low: int, high: int | None) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return value >= low and (high is None or value <= high)

    return is_valid
