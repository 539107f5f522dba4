"""Translations between v2beta2 and v2, of queues and tasks.

A queue has one target there, and a task its counts in a message of their own. Several messages have
other names for fields of the same numbers, and are copied as bytes.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta2
"""

from collections.abc import Iterable
from typing import Any

import google.cloud.tasks_v2beta2.types as types

from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.beta_queues import (
    OWN_FIELDS,
    add_times_to_live,
    check_times_to_live,
)
from rollforward.local.cloudtasks.protocol.translation import copy_fields
from rollforward.local.cloudtasks.protocol.validation import UNLIMITED_ATTEMPTS
from rollforward.local.cloudtasks.store.records import PullMessage

Queue: Any = types.Queue.pb()
Task: Any = types.Task.pb()

_ROUTING, _TARGET = "app_engine_routing_override", "app_engine_http_target"
_PULL, _HTTP = "pull_target", "http_target"
_UNLIMITED_CONCURRENCY = -1
_OUTPUT_ONLY = OWN_FIELDS | {"name", "state", "purge_time", _PULL}
_PATHS = {
    "rate_limits.max_tasks_dispatched_per_second": "rate_limits.max_dispatches_per_second",
    "rate_limits.max_concurrent_tasks": "rate_limits.max_concurrent_dispatches",
    "retry_config.unlimited_attempts": "retry_config.max_attempts",
    _TARGET: _ROUTING,
}


# --- queues ---------------------------------------------------------------


def is_pull_queue(queue: Any) -> bool | None:
    """Return whether a request asks for a pull queue, None if it does not say."""
    target = queue.WhichOneof("target_type")
    return None if target is None else target == _PULL


def queue_of_request(queue: Any, is_pull: bool) -> Any:
    """Return a requested queue as one of v2; what a pull queue cannot set is passed over.

    Raises:
        Refused: INVALID_ARGUMENT: it asks for what only v2beta2 has, and the emulator has not.
    """
    check_times_to_live(queue)
    asked = messages.Queue(name=queue.name)
    _take_attempts(queue.retry_config, asked.retry_config)
    if is_pull:
        config = queue.retry_config
        if config.HasField("max_retry_duration"):
            asked.retry_config.max_retry_duration.CopyFrom(config.max_retry_duration)
        return asked
    for field in ("max_retry_duration", "min_backoff", "max_backoff"):
        if queue.retry_config.HasField(field):
            getattr(asked.retry_config, field).CopyFrom(getattr(queue.retry_config, field))
    asked.retry_config.max_doublings = queue.retry_config.max_doublings
    _copy_bytes(queue.rate_limits, asked.rate_limits)
    if queue.HasField(_HTTP):
        copy_fields(queue.http_target, asked.http_target)
    if queue.HasField(_TARGET):
        asked.app_engine_routing_override.SetInParent()
        copy_fields(
            queue.app_engine_http_target.app_engine_routing_override,
            asked.app_engine_routing_override,
        )
    return asked


def _take_attempts(config: Any, target: Any) -> None:
    chosen = config.WhichOneof("num_attempts")
    if chosen == "max_attempts" and config.max_attempts < 1:
        raise errors.invalid("RetryConfig.maxAttempts must be greater than 0.")
    if chosen == "unlimited_attempts" and config.unlimited_attempts:
        target.max_attempts = UNLIMITED_ATTEMPTS
    else:
        target.max_attempts = config.max_attempts


def queue_paths(paths: Iterable[str]) -> list[str]:
    """Translate the paths of an update mask into v2; output-only fields are passed over."""
    return [_queue_path(path) for path in paths]


def _queue_path(path: str) -> str:
    if path.partition(".")[0] in _OUTPUT_ONLY:
        return "name"
    if path.startswith(f"{_TARGET}."):
        return path.removeprefix(f"{_TARGET}.")
    return _PATHS.get(path, path)


def convert_queue(queue: Any, traits: Any) -> Any:
    """Return a queue of v2 as v2beta2 shows it.

    Args:
        traits: The traits of the queue.
    """
    shown = Queue(name=queue.name, state=queue.state)
    if queue.HasField("purge_time"):
        shown.purge_time.CopyFrom(queue.purge_time)
    add_times_to_live(shown, traits)
    attempts = queue.retry_config.max_attempts
    if traits.is_pull:
        shown.pull_target.SetInParent()
        shown.rate_limits.max_tasks_dispatched_per_second = messages.MAX_RATE_PER_S
        shown.rate_limits.max_concurrent_tasks = _UNLIMITED_CONCURRENCY
        if queue.retry_config.HasField("max_retry_duration"):
            shown.retry_config.max_retry_duration.CopyFrom(queue.retry_config.max_retry_duration)
    else:
        _copy_bytes(queue.rate_limits, shown.rate_limits)
        copy_fields(queue.retry_config, shown.retry_config)
        _show_target(queue, shown)
    if attempts == UNLIMITED_ATTEMPTS:
        shown.retry_config.unlimited_attempts = True
    else:
        shown.retry_config.max_attempts = attempts
    return shown


def _show_target(queue: Any, shown: Any) -> None:
    """Show the one target that v2beta2 allows; a queue of v2 may have two."""
    if queue.HasField(_HTTP):
        shown.http_target.SetInParent()
        copy_fields(queue.http_target, shown.http_target)
    elif queue.HasField(_ROUTING):
        target = shown.app_engine_http_target
        target.app_engine_routing_override.SetInParent()
        copy_fields(queue.app_engine_routing_override, target.app_engine_routing_override)


# --- tasks ----------------------------------------------------------------


def task_of_request(task: Any) -> Any:
    """Return a requested task as one of v2, which has no field for a pull message."""
    asked = messages.Task(name=task.name)
    if task.HasField("schedule_time"):
        asked.schedule_time.CopyFrom(task.schedule_time)
    if task.HasField("http_request"):
        asked.http_request.SetInParent()
        copy_fields(task.http_request, asked.http_request)
    if task.HasField("app_engine_http_request"):
        asked.app_engine_http_request.SetInParent()
        _copy_bytes(task.app_engine_http_request, asked.app_engine_http_request)
    return asked


def convert_task(task: Any, pull: PullMessage | None = None) -> Any:
    """Return a task of v2 as v2beta2 shows it.

    Args:
        pull: The content of a task of a pull queue.
    """
    shown = Task(name=task.name, view=task.view)
    shown.schedule_time.CopyFrom(task.schedule_time)
    shown.create_time.CopyFrom(task.create_time)
    if pull is not None:
        shown.pull_message.SetInParent()
        shown.pull_message.tag = pull.tag
        if task.view == messages.FULL:
            shown.pull_message.payload = pull.payload
    elif task.HasField("http_request"):
        copy_fields(task.http_request, shown.http_request)
    else:
        _copy_bytes(task.app_engine_http_request, shown.app_engine_http_request)
    status = shown.status
    status.attempt_dispatch_count = task.dispatch_count
    status.attempt_response_count = task.response_count
    if task.HasField("first_attempt"):
        copy_fields(task.first_attempt, status.first_attempt_status)
        copy_fields(task.last_attempt, status.last_attempt_status)
    return shown


def _copy_bytes(source: Any, target: Any) -> None:
    """Copy a message whose fields have the same numbers, and other names."""
    target.MergeFromString(source.SerializeToString())
