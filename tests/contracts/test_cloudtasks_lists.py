"""Views of a task, lists in pages, and the tokens of the pages."""

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2

from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

HttpMethod = tasks_v2.HttpMethod
DAY_S = 86400


@pytest.mark.parametrize(("view", "body"), [("BASIC", b""), ("FULL", b"x"), (None, b"")])
def test_view_of_every_call(cloud, view, body):
    """BASIC is the default and hides the body, in every call that returns a task (REF#task)."""
    wanted = {"response_view": view} if view else {}
    task = {"http_request": cloud.http(body=b"x")}

    created = cloud.client.create_task(request={"parent": cloud.queue, "task": task, **wanted})
    name = created.name
    (listed,) = cloud.client.list_tasks(request={"parent": cloud.queue, **wanted})
    got = cloud.client.get_task(request={"name": name, **wanted})
    ran = cloud.client.run_task(request={"name": name, **wanted})

    for shown in (created, listed, got, ran):
        assert shown.http_request.body == body
        assert shown.view.name == (view or "BASIC")


def test_tasks_are_listed_in_pages(cloud):
    """Pages of a list hold each task once (REF#listtasks)."""
    names = [cloud.create().name for _ in range(5)]

    pages = list(cloud.client.list_tasks(request={"parent": cloud.queue, "page_size": 2}).pages)

    assert [len(page.tasks) for page in pages] == [2, 2, 1]
    assert sorted(task.name for page in pages for task in page.tasks) == sorted(names)


def test_largest_page_of_tasks(cloud):
    """A page has at most 1,000 tasks, whatever is asked for (REF#listtasksrequest)."""
    for _ in range(11):
        requests = [{"parent": cloud.queue, "task": {"http_request": cloud.http()}}] * 100
        cloud.client.batch_create_tasks(request={"parent": cloud.queue, "requests": requests})

    for size in (0, 5000):
        page = cloud.client.list_tasks(request={"parent": cloud.queue, "page_size": size})
        assert len(next(iter(page.pages)).tasks) == 1000


@pytest.mark.parametrize("token", ["nonsense", "bm9uc2Vuc2U=", "ümlaut", "x" * 200])
def test_page_token_that_is_not_ours(cloud, token):
    """A page token must be one that the service returned (REF#listtasksrequest)."""
    with pytest.raises(exceptions.InvalidArgument, match="page token"):
        cloud.client.list_tasks(request={"parent": cloud.queue, "page_token": token})


def test_page_token_that_was_changed(cloud):
    """A page token is opaque: a changed one is refused (google.aip.dev/158)."""
    token = first_token(cloud)
    changed = token[:-6] + ("A" if token[-6] != "A" else "B") + token[-5:]

    with pytest.raises(exceptions.InvalidArgument, match="page token"):
        cloud.client.list_tasks(request={"parent": cloud.queue, "page_token": changed})


def test_page_token_of_another_queue(cloud):
    """A page token continues the list it came from (google.aip.dev/158)."""
    other = cloud.client.create_queue(parent=PARENT, queue={"name": f"{PARENT}/queues/other"})
    token = first_token(cloud)

    with pytest.raises(exceptions.InvalidArgument, match="page token"):
        cloud.client.list_tasks(request={"parent": other.name, "page_token": token})


def test_page_token_after_two_hours(cloud):
    """A page token is valid for only 2 hours (REF#listtasksrequest)."""
    token = first_token(cloud)
    request = {"parent": cloud.queue, "page_token": token}
    cloud.advance(2 * 3600)
    cloud.client.list_tasks(request=request)
    cloud.advance(1)

    with pytest.raises(exceptions.InvalidArgument, match="expired"):
        cloud.client.list_tasks(request=request)


def first_token(cloud: Cloud) -> str:
    """Return the page token of a list with more tasks."""
    cloud.create()
    cloud.create()
    page = cloud.client.list_tasks(request={"parent": cloud.queue, "page_size": 1})
    return page.next_page_token


def test_negative_page_size(cloud):
    """A negative page size is INVALID_ARGUMENT (google.aip.dev/158)."""
    with pytest.raises(exceptions.InvalidArgument, match="page_size"):
        cloud.client.list_tasks(request={"parent": cloud.queue, "page_size": -1})


def test_tasks_of_unknown_queue(cloud):
    """ListTasks of an unknown queue is NOT_FOUND (REF#listtasks)."""
    with pytest.raises(exceptions.NotFound):
        cloud.client.list_tasks(parent=f"{PARENT}/queues/missing")
