"""The methods of v2beta2: pull queues and their leases, and the calls of v2 in older messages.

UploadQueueYaml is not served: it is for versions of gcloud before 322.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta2
"""

from collections.abc import Callable
from typing import Any

import google.cloud.tasks_v2beta2.types as types
from google.protobuf import empty_pb2

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.engine.queue_state import QueueState
from rollforward.local.cloudtasks.protocol import beta2_messages as beta2
from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.beta_queues import ReadMask
from rollforward.local.cloudtasks.protocol.buffer_messages import buffer_messages
from rollforward.local.cloudtasks.protocol.leases import (
    check_count,
    checked_message,
    lease_seconds,
    tag_filter,
)
from rollforward.local.cloudtasks.protocol.messages import seconds_of
from rollforward.local.cloudtasks.protocol.task_messages import in_view
from rollforward.local.cloudtasks.server.methods import Method, Methods
from rollforward.local.cloudtasks.store.records import TaskRecord

_KEPT = {
    "GetIamPolicy", "SetIamPolicy", "TestIamPermissions", "ListLocations", "GetLocation",
}  # fmt: skip


def methods(engine: Engine, v2: Methods) -> Methods:
    """Return the methods of v2beta2.

    Args:
        v2: The methods of v2, locations included.
    """
    kept = {name: v2[name] for name in _KEPT}
    queues, tasks = _Queues(engine), _Tasks(engine)
    return kept | queues.methods(v2) | tasks.methods(v2) | tasks.lease_methods()


def _request(name: str) -> Any:
    return getattr(types, f"{name}Request").pb()


class _Queues:
    """The calls on queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def methods(self, v2: Methods) -> Methods:
        """Return them by name."""
        page = types.ListQueuesResponse.pb()
        own = {"CreateQueue": self.create, "UpdateQueue": self.update, "GetQueue": self.get}
        table = {name: Method(call, _request(name), beta2.Queue) for name, call in own.items()}
        for name in ("PurgeQueue", "PauseQueue", "ResumeQueue"):
            table[name] = Method(self._convert_after(v2[name].call), _request(name), beta2.Queue)
        table["ListQueues"] = Method(self.list, _request("ListQueues"), page)
        table["DeleteQueue"] = Method(
            v2["DeleteQueue"].call, _request("DeleteQueue"), empty_pb2.Empty
        )
        return table

    def create(self, request: Any) -> Any:
        """Create a queue, a pull queue if its target says so."""
        is_pull = bool(beta2.is_pull_queue(request.queue))
        asked = beta2.queue_of_request(request.queue, is_pull)
        return self._convert(self._engine.queues.create(request.parent, asked, is_pull=is_pull))

    def update(self, request: Any) -> Any:
        """Change or create a queue, which stays of its kind."""
        queues, queue = self._engine.queues, request.queue
        wanted = beta2.is_pull_queue(queue)
        is_pull = queues.is_pull(queue.name) if wanted is None else wanted
        asked = beta2.queue_of_request(queue, is_pull)
        paths = beta2.queue_paths(request.update_mask.paths)
        return self._convert(queues.update(asked, paths, is_pull=wanted))

    def get(self, request: Any) -> Any:
        """Return a queue, with the fields that the read mask names."""
        mask = self._mask(request)
        queue = self._convert(self._engine.queues.get(request.name))
        mask.apply(queue)
        return queue

    def list(self, request: Any) -> Any:
        """Return a page of queues; the filter has the names of this version."""
        mask = self._mask(request)
        queues, token = self._engine.queues.page(
            request.parent,
            request.filter,
            request.page_size,
            request.page_token,
            show=self._convert_state,
            queue_type=beta2.Queue,
        )
        for queue in queues:
            mask.apply(queue)
        return types.ListQueuesResponse.pb()(queues=queues, next_page_token=token)

    def _convert(self, queue: Any) -> Any:
        return beta2.convert_queue(queue, self._engine.queues.traits(queue.name))

    def _mask(self, request: Any) -> ReadMask:
        figures = self._engine.history.figures
        return ReadMask(request.read_mask.paths, beta2.Queue, figures)

    def _convert_state(self, queue: QueueState) -> Any:
        return self._convert(queue.message)

    def _convert_after(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda request: self._convert(call(request))


class _Tasks:
    """The calls on tasks and their leases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def methods(self, v2: Methods) -> Methods:
        """Return the calls that v2 has, too, by name."""
        page, buffer = types.ListTasksResponse.pb(), buffer_messages(beta2.Task)

        def buffered(request: Any) -> Any:
            return buffer[1](task=beta2.convert_task(v2["BufferTask"].call(request).task))

        def run(request: Any) -> Any:
            return beta2.convert_task(v2["RunTask"].call(request))

        return {
            "CreateTask": Method(self.create, _request("CreateTask"), beta2.Task),
            "GetTask": Method(self.get, _request("GetTask"), beta2.Task),
            "ListTasks": Method(self.list, _request("ListTasks"), page),
            "RunTask": Method(run, _request("RunTask"), beta2.Task),
            "BufferTask": Method(buffered, *buffer),
            "DeleteTask": Method(v2["DeleteTask"].call, _request("DeleteTask"), empty_pb2.Empty),
        }

    def lease_methods(self) -> Methods:
        """Return the calls of workers by name."""
        return {
            "LeaseTasks": Method(self.lease, _request("LeaseTasks"), types.LeaseTasksResponse.pb()),
            "AcknowledgeTask": Method(
                self.acknowledge, _request("AcknowledgeTask"), empty_pb2.Empty
            ),
            "RenewLease": Method(self.renew, _request("RenewLease"), beta2.Task),
            "CancelLease": Method(self.cancel, _request("CancelLease"), beta2.Task),
        }

    def create(self, request: Any) -> Any:
        """Create a task, for a request or for a lease."""
        asked, pull = beta2.task_of_request(request.task), None
        if request.task.HasField("pull_message"):
            pull = checked_message(request.task.pull_message)
        created = self._engine.tasks.create(request.parent, asked, request.response_view, pull=pull)
        return beta2.convert_task(created, pull)

    def get(self, request: Any) -> Any:
        """Return a task."""
        return self._engine.tasks.get(request.name, request.response_view, _show)

    def list(self, request: Any) -> Any:
        """Return a page of tasks."""
        tasks, token = self._engine.tasks.page(
            request.parent, request.response_view, request.page_size, request.page_token, _show
        )
        return types.ListTasksResponse.pb()(tasks=tasks, next_page_token=token)

    def lease(self, request: Any) -> Any:
        """Lease tasks."""
        check_count(request.max_tasks)
        tasks = self._engine.leases.lease(
            request.parent,
            request.max_tasks,
            lease_seconds(request.lease_duration),
            tag_filter(request.filter),
            request.response_view,
            _show,
        )
        return types.LeaseTasksResponse.pb()(tasks=tasks)

    def acknowledge(self, request: Any) -> Any:
        """End a leased task."""
        self._engine.leases.acknowledge(request.name, _schedule_time(request))
        return empty_pb2.Empty()

    def renew(self, request: Any) -> Any:
        """Let a lease last longer."""
        lease_s = lease_seconds(request.lease_duration)
        task = self._engine.leases.renew(request.name, _schedule_time(request), lease_s)
        return _show(task, request.response_view)

    def cancel(self, request: Any) -> Any:
        """End a lease."""
        task = self._engine.leases.cancel(request.name, _schedule_time(request))
        return _show(task, request.response_view)


def _show(task: TaskRecord, view: int) -> Any:
    return beta2.convert_task(in_view(task, view), task.pull)


def _schedule_time(request: Any) -> float:
    if not request.HasField("schedule_time"):
        raise errors.invalid("schedule_time is required: it proves the lease.")
    return seconds_of(request.schedule_time)
