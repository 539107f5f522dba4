"""Batches of tasks, and the operations they return.

REF is cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.longrunning import operations_pb2

from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

CreateState = tasks_v2.BatchCreateTasksMetadata.State
ALREADY_EXISTS, INVALID_ARGUMENT, NOT_FOUND = 6, 3, 5


def create(cloud: Cloud, *task_ids: str, **fields: Any) -> Any:
    """Create a batch of tasks and return the operation's future."""
    requests = [{"parent": cloud.queue, "task": task(cloud, task_id)} for task_id in task_ids]
    return cloud.client.batch_create_tasks(
        request={"parent": cloud.queue, "requests": requests, **fields}
    )


def task(cloud: Cloud, task_id: str) -> dict[str, Any]:
    """Return a task of this id, or an unnamed one."""
    named = {"name": f"{cloud.queue}/tasks/{task_id}"} if task_id else {}
    return {"http_request": cloud.http(body=b"x"), **named}


def delete(cloud: Cloud, *task_ids: str, **fields: Any) -> Any:
    """Delete a batch of tasks and return the operation's future."""
    names = [f"{cloud.queue}/tasks/{task_id}" for task_id in task_ids]
    return cloud.client.batch_delete_tasks(
        request={"parent": cloud.queue, "names": names, **fields}
    )


def test_batch_creates_all_tasks(cloud):
    """BatchCreateTasks creates the tasks and returns them (REF#batchcreatetasks)."""
    operation = create(cloud, "a", "b", "")

    created = operation.result().tasks
    assert [t.name.rpartition("/")[2] for t in created[:2]] == ["a", "b"]
    assert len(cloud.begin()) == 3
    assert operation.metadata.state == CreateState.SUCCEEDED
    assert operation.metadata.start_time.timestamp() == cloud.now()


def test_batch_reports_failures_by_index(cloud):
    """A member that fails stands in the metadata under its index (REF#batchcreatetasksmetadata)."""
    cloud.create("b")

    operation = create(cloud, "a", "b", "not valid", "c")

    failed = operation.metadata.failed_requests
    assert {index: status.code for index, status in failed.items()} == {
        1: ALREADY_EXISTS,
        2: INVALID_ARGUMENT,
    }
    assert failed[1].message == "Requested entity already exists"
    assert [t.name.rpartition("/")[2] for t in operation.result().tasks] == ["a", "c"]
    assert operation.metadata.state == CreateState.PARTIALLY_SUCCEEDED


def test_name_twice_in_one_batch(cloud):
    """Within a batch, too, a name can be used once (REF#createtaskrequest)."""
    operation = create(cloud, "a", "a")

    assert list(operation.metadata.failed_requests) == [1]


def test_batch_in_which_all_failed(cloud):
    """An operation whose members all failed is ABORTED (REF#batchdeletetasksmetadata)."""
    create(cloud, "a")

    operation = create(cloud, "a")

    with pytest.raises(exceptions.Aborted, match="None of the requests succeeded"):
        operation.result()
    assert operation.metadata.failed_requests[0].code == ALREADY_EXISTS


def test_batch_of_100(cloud):
    """A batch creates at most 100 tasks (REF#batchcreatetasksrequest)."""
    assert len(create(cloud, *[""] * 100).result().tasks) == 100

    with pytest.raises(exceptions.InvalidArgument, match="100"):
        create(cloud, *[""] * 101)


def test_empty_batch(cloud):
    """The members of a batch are required (REF#batchcreatetasksrequest)."""
    with pytest.raises(exceptions.InvalidArgument):
        create(cloud)
    with pytest.raises(exceptions.InvalidArgument):
        delete(cloud)


def test_batch_for_unknown_queue(cloud):
    """The queue must already exist (REF#batchcreatetasksrequest)."""
    missing = f"{PARENT}/queues/missing"
    member = {"parent": missing, "task": task(cloud, "")}

    with pytest.raises(exceptions.NotFound, match="Queue does not exist"):
        cloud.client.batch_create_tasks(request={"parent": missing, "requests": [member]})
    with pytest.raises(exceptions.NotFound, match="Queue does not exist"):
        cloud.client.batch_delete_tasks(
            request={"parent": missing, "names": [f"{missing}/tasks/a"]}
        )


def test_batch_over_two_queues(cloud):
    """All tasks of a batch are for the same queue (REF#batchcreatetasks)."""
    members = [
        {"parent": cloud.queue, "task": task(cloud, "")},
        {"parent": f"{PARENT}/queues/other", "task": task(cloud, "")},
    ]

    with pytest.raises(exceptions.InvalidArgument, match=r"requests\[1\]"):
        cloud.client.batch_create_tasks(request={"parent": cloud.queue, "requests": members})
    assert cloud.begin() == []


def test_view_in_a_batch(cloud):
    """Each member of a batch names its own view (REF#createtaskrequest)."""
    members = [
        {"parent": cloud.queue, "task": task(cloud, ""), "response_view": view}
        for view in ("BASIC", "FULL")
    ]

    operation = cloud.client.batch_create_tasks(
        request={"parent": cloud.queue, "requests": members}
    )

    assert [t.http_request.body for t in operation.result().tasks] == [b"", b"x"]


def test_same_request_id_is_the_same_operation(cloud):
    """A request_id avoids duplication when the caller retries (REF#batchcreatetasksrequest)."""
    first = create(cloud, "", request_id="once")
    again = create(cloud, "", request_id="once")

    assert again.operation.name == first.operation.name
    assert len(cloud.begin()) == 1
    assert create(cloud, "", request_id="twice").operation.name != first.operation.name


def test_operation_can_be_asked_for_later(cloud):
    """GetOperation returns the operation under its name (google.longrunning)."""
    operation = create(cloud, "a").operation

    got = cloud.client.get_operation(request={"name": operation.name})

    assert got.done
    assert got == operation


def test_unknown_operation(cloud):
    """GetOperation of an unknown name is NOT_FOUND (google.longrunning)."""
    with pytest.raises(exceptions.NotFound):
        cloud.client.get_operation(request={"name": f"{PARENT}/operations/unknown"})


def test_operations_can_be_listed_waited_for_and_deleted(cloud):
    """The Operations service lists, waits for, cancels and deletes (google.longrunning)."""
    operations = cloud.client.transport.operations_client
    name = create(cloud, "a").operation.name

    listed = list(operations.list_operations(name=PARENT, filter_=""))
    assert [operation.name for operation in listed] == [name]
    operations.cancel_operation(name)
    assert isinstance(operations.get_operation(name), operations_pb2.Operation)
    operations.delete_operation(name)
    with pytest.raises(exceptions.NotFound):
        operations.get_operation(name)


def test_batch_deletes_all_tasks(cloud):
    """BatchDeleteTasks deletes the tasks (REF#batchdeletetasks)."""
    create(cloud, "a", "b", "c")

    operation = delete(cloud, "a", "b")

    operation.result()
    assert operation.metadata.state.name == "SUCCEEDED"
    assert [attempt.task.name.rpartition("/")[2] for attempt in cloud.begin()] == ["c"]


def test_batch_delete_is_not_atomic(cloud):
    """What cannot be deleted is reported by index, the rest is deleted (REF#batchdeletetasks)."""
    create(cloud, "a")

    operation = delete(cloud, "unknown", "a")

    operation.result()
    metadata = operation.metadata
    assert metadata.state.name == "PARTIALLY_SUCCEEDED"
    assert {index: s.code for index, s in metadata.failed_requests.items()} == {0: NOT_FOUND}
    assert cloud.begin() == []


def test_batch_delete_in_which_all_failed(cloud):
    """When all deletions fail, the operation says so (REF#batchdeletetasksmetadata)."""
    operation = delete(cloud, "unknown")

    assert operation.operation.error.message == (
        "None of the requests succeeded, refer to "
        "BatchDeleteTasksMetadata.failed_requests for individual error details"
    )
    with pytest.raises(exceptions.Aborted):
        operation.result()


def test_batch_delete_of_1000(cloud):
    """A batch deletes at most 1,000 tasks (REF#batchdeletetasksrequest)."""
    create(cloud, "a")
    ids = ["a", *(f"unknown-{n}" for n in range(999))]
    assert delete(cloud, *ids).metadata.state.name == "PARTIALLY_SUCCEEDED"

    with pytest.raises(exceptions.InvalidArgument, match="1000"):
        delete(cloud, *ids, "one-more")


def test_batch_delete_over_two_queues(cloud):
    """The names of a batch belong to its queue (REF#batchdeletetasksrequest)."""
    with pytest.raises(exceptions.InvalidArgument, match="must be the same"):
        cloud.client.batch_delete_tasks(
            request={"parent": cloud.queue, "names": [f"{PARENT}/queues/other/tasks/a"]}
        )
