"""Tasks: names, limits, views, lists, deletion.

REF is cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2

from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

HttpMethod = tasks_v2.HttpMethod
DAY_S = 86400


# --- names -----------------------------------------------------------------


def test_unnamed_tasks_get_unique_ids(cloud):
    """Without a name the service makes a unique id (REF#createtaskrequest)."""
    names = {cloud.create().name for _ in range(20)}

    assert len(names) == 20
    assert all(name.startswith(f"{cloud.queue}/tasks/") for name in names)


def test_id_of_500_characters(cloud):
    """A task id has up to 500 letters, digits, hyphens and underscores (REF#task)."""
    task_id = ("aZ09-_" * 84)[:500]

    assert cloud.create(task_id).name == f"{cloud.queue}/tasks/{task_id}"


def test_a_name_is_given_once_to_callers_at_the_same_time(cloud):
    """Calls run on several threads, and of many that want a name one gets it."""

    def create(_: int) -> bool:
        try:
            return bool(cloud.create("a").name)
        except exceptions.AlreadyExists:
            return False

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(create, range(24)))

    assert outcomes.count(True) == 1
    assert len(cloud.begin()) == 1


def test_name_is_free_after_24_hours(cloud):
    """A name of an ended task can be used again after up to 24 hours (REF#createtaskrequest)."""
    cloud.create("a")
    cloud.deliver(200)
    cloud.advance(DAY_S - 1)
    with pytest.raises(exceptions.AlreadyExists):
        cloud.create("a")
    cloud.advance(1)

    cloud.create("a")

    assert len(cloud.begin()) == 1


def test_name_of_a_task_out_of_retries_is_blocked(cloud):
    """A task that failed for good has used its name as well (REF#createtaskrequest)."""
    cloud.configure(retry_config__max_attempts=1)
    cloud.create("a")
    cloud.deliver(500)

    with pytest.raises(exceptions.AlreadyExists):
        cloud.create("a")


def test_same_id_in_two_queues(cloud):
    """A task's name includes its queue: the same id may live in two (REF#task)."""
    other = cloud.client.create_queue(parent=PARENT, queue={"name": f"{PARENT}/queues/other"})
    cloud.create("a")

    task = {"name": f"{other.name}/tasks/a", "http_request": cloud.http()}

    assert cloud.client.create_task(parent=other.name, task=task).name == task["name"]


# --- schedule and deadline -------------------------------------------------


@pytest.mark.parametrize("offset_s", [None, -60])
def test_schedule_time_defaults_to_now(cloud, offset_s):
    """An unset or past schedule time becomes the current time (REF#createtaskrequest)."""
    task = cloud.create() if offset_s is None else cloud.create_in(offset_s)

    assert task.schedule_time.timestamp() == cloud.now()
    assert task.create_time.timestamp() == cloud.now()


def test_schedule_time_of_30_days(cloud):
    """A task may be scheduled at most 30 days ahead (tasks/docs/quotas)."""
    cloud.create_in(30 * DAY_S)

    with pytest.raises(exceptions.InvalidArgument, match="720h"):
        cloud.create_in(30 * DAY_S + 1)


def test_task_waits_for_its_schedule_time(cloud):
    """A task is dispatched at its schedule time, not before (REF#task)."""
    cloud.create_in(60)
    cloud.advance(59)
    assert cloud.begin() == []
    cloud.advance(1)

    assert len(cloud.begin()) == 1


@pytest.mark.parametrize(
    ("target", "seconds"),
    [("http", 15), ("http", 1800), ("app_engine", 15), ("app_engine", 24 * 3600 + 15)],
)
def test_dispatch_deadline_in_range(cloud, target, seconds):
    """Deadlines: 15 s to 30 min for HTTP, to 24 h 15 s for App Engine targets (REF#task)."""
    task = create_with_deadline(cloud, target, seconds)

    assert task.dispatch_deadline == datetime.timedelta(seconds=seconds)
    assert cloud.begin()[0].deadline_s == seconds


@pytest.mark.parametrize(
    ("target", "seconds"),
    [("http", 14), ("http", 1801), ("app_engine", 14), ("app_engine", 24 * 3600 + 16)],
)
def test_dispatch_deadline_out_of_range(cloud, target, seconds):
    """A deadline outside its target's range is INVALID_ARGUMENT (REF#task)."""
    with pytest.raises(exceptions.InvalidArgument, match="dispatchDeadline"):
        create_with_deadline(cloud, target, seconds)


@pytest.mark.parametrize("target", ["http", "app_engine"])
def test_default_deadline(cloud, target):
    """The default deadline is 10 minutes (REF#task)."""
    create_with_deadline(cloud, target, 0)

    assert cloud.begin()[0].deadline_s == 600


def create_with_deadline(cloud: Cloud, target: str, seconds: int) -> tasks_v2.Task:
    """Create a task with a dispatch deadline."""
    deadline = {"seconds": seconds}
    if target == "http":
        return cloud.create(dispatch_deadline=deadline)
    return cloud.create(dispatch_deadline=deadline, app_engine_http_request={"relative_uri": "/"})


# --- requests --------------------------------------------------------------


def test_task_without_target(cloud):
    """A task needs an HTTP or an App Engine request (REF#task)."""
    with pytest.raises(exceptions.InvalidArgument):
        cloud.client.create_task(parent=cloud.queue, task={})


@pytest.mark.parametrize(
    "url",
    ["ftp://a.invalid/", "a.invalid", "", "/relative", "http:/a", "http://", "http://a:99999/"],
)
def test_url_that_is_none(cloud, url):
    """An HTTP target's url is a full one, and begins with http:// or https:// (REF)."""
    with pytest.raises(exceptions.InvalidArgument, match=r"Http(Request|Target)\.url"):
        cloud.create(http_request={"url": url})


def test_relative_uri_without_slash(cloud):
    """A relative URI begins with a slash; an empty one is the root (REF#appenginehttprequest)."""
    with pytest.raises(exceptions.InvalidArgument, match="relative_uri"):
        cloud.create(app_engine_http_request={"relative_uri": "path"})

    task = cloud.create(app_engine_http_request={})
    assert task.app_engine_http_request.relative_uri == "/"


@pytest.mark.parametrize(
    "request_of",
    [
        lambda path: {"http_request": {"url": "http://" + path[7:]}},
        lambda path: {"app_engine_http_request": {"relative_uri": path}},
    ],
)
def test_longest_address(cloud, request_of):
    """An address has at most 2,083 characters once it is encoded (REF#httprequest)."""
    cloud.create(**request_of("/" + "a" * 2082))
    cloud.create(**request_of("/" + "a" * 2076 + "\u00fc"))

    with pytest.raises(exceptions.InvalidArgument, match="2083"):
        cloud.create(**request_of("/" + "a" * 2083))
    with pytest.raises(exceptions.InvalidArgument, match="2083"):
        cloud.create(**request_of("/" + "a" * 2077 + "\u00fc"))


@pytest.mark.parametrize("field", ["http_request", "app_engine_http_request"])
def test_address_with_space(cloud, field):
    """No spaces are allowed in an address (REF#appenginehttprequest)."""
    address = {"url": "http://a.invalid/a b"} if "app" not in field else {"relative_uri": "/a b"}

    with pytest.raises(exceptions.InvalidArgument, match="spaces"):
        cloud.create(**{field: address})


@pytest.mark.parametrize("field", ["http_request", "app_engine_http_request"])
def test_method_defaults_to_post(cloud, field):
    """The default method is POST (REF#httprequest, REF#appenginehttprequest)."""
    address = {"url": "http://a.invalid/"} if "app" not in field else {}

    task = cloud.create(**{field: address})

    assert getattr(task, field).http_method == HttpMethod.POST
    assert cloud.begin()[0].method == "POST"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_body_of_http_task(cloud, method):
    """An HTTP target takes a body with POST, PUT and PATCH (REF#httprequest)."""
    cloud.create(http_request=cloud.http(http_method=method, body=b"x"))

    assert cloud.begin()[0].body == b"x"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_body_of_http_task_refused(cloud, method):
    """A body with any other method is an error (REF#httprequest)."""
    with pytest.raises(exceptions.InvalidArgument, match="body"):
        cloud.create(http_request=cloud.http(http_method=method, body=b"x"))


@pytest.mark.parametrize(
    ("method", "is_taken"),
    [("POST", True), ("PUT", True), ("PATCH", False), ("GET", False), ("DELETE", False)],
)
def test_body_of_app_engine_task(cloud, method, is_taken):
    """An App Engine target takes a body with POST and PUT only (REF#appenginehttprequest)."""
    request = {"http_method": method, "body": b"x"}

    if is_taken:
        cloud.create(app_engine_http_request=request)
        assert cloud.begin()[0].body == b"x"
    else:
        with pytest.raises(exceptions.InvalidArgument, match="body"):
            cloud.create(app_engine_http_request=request)


def test_largest_headers(cloud):
    """The headers of an HTTP target are smaller than 80 KB (REF#httprequest)."""
    with pytest.raises(exceptions.InvalidArgument, match="80KB"):
        cloud.create(http_request=cloud.http(headers={"X-Large": "x" * 80 * 1024}))


@pytest.mark.parametrize(
    "name", ["", " X-A", "Content-Length ", "X-A: b", "X A", "X-\u00e4", "X-\n"]
)
def test_a_name_of_a_header_is_a_token(cloud, name):
    """As RFC 9110 has it: a space behind its name made a reserved header the caller's."""
    with pytest.raises(exceptions.InvalidArgument, match="HTTP does not allow"):
        cloud.create(http_request=cloud.http(headers={name: "1"}))


def test_reserved_headers_are_not_the_callers(cloud):
    """Host, Content-Length, X-Google-*, X-AppEngine-* cannot be set (REF#httprequest)."""
    headers = {
        "Host": "evil.invalid",
        "Content-Length": "999",
        "X-Google-Internal": "1",
        "X-AppEngine-QueueName": "forged",
        "X-CloudTasks-TaskName": "forged",
        "User-Agent": "forged",
        "Transfer-encoding": "chunked",
        "Connection": "close",
        "X-Own": "kept",
    }

    cloud.create("a", http_request=cloud.http(headers=headers))

    sent = cloud.begin()[0].headers
    assert sent["X-Own"] == "kept"
    assert sent["X-CloudTasks-TaskName"] == "a"
    assert sent["User-Agent"] == "Google-Cloud-Tasks"
    own = {name for name in sent if not name.startswith("X-CloudTasks-")}
    assert own == {"X-Own", "User-Agent"}


@pytest.mark.parametrize("kind", ["oidc_token", "oauth_token"])
def test_token_without_an_account(cloud, kind):
    """A token is of a service account, whose e-mail must be told (REF#oidctoken)."""
    with pytest.raises(exceptions.InvalidArgument, match="service_account_email"):
        cloud.create(http_request=cloud.http(**{kind: {}}))


def test_app_engine_agent_is_appended(cloud):
    """App Engine appends its name to a User-Agent of the caller's (REF#appenginehttprequest)."""
    cloud.create(app_engine_http_request={"headers": {"user-agent": "mine"}})

    assert cloud.begin()[0].headers["User-Agent"] == (
        "mine AppEngine-Google; (+http://code.google.com/appengine)"
    )


def test_app_engine_host_is_told(cloud):
    """The host is constructed from service, version and project (REF#appenginerouting)."""
    routing = {"service": "worker", "version": "v2"}

    task = cloud.create(app_engine_http_request={"app_engine_routing": routing})

    stored = task.app_engine_http_request.app_engine_routing
    assert stored.host == "v2.worker.demo-local.appspot.com"


# --- attempts as the API shows them ----------------------------------------


def test_attempts_are_counted(cloud):
    """A task tells its dispatches, its responses and its first and last attempt (REF#task)."""
    task = cloud.create()
    cloud.deliver(503)
    cloud.advance(1)
    attempt = cloud.begin()[0]

    running = cloud.client.get_task(name=task.name)
    cloud.engine.end_attempt(attempt.id, error="DEADLINE_EXCEEDED")
    failed = cloud.client.get_task(name=task.name)

    assert (running.dispatch_count, running.response_count) == (2, 1)
    assert "response_time" not in running.last_attempt
    assert (failed.dispatch_count, failed.response_count) == (2, 1)
    assert failed.first_attempt.dispatch_time == task.schedule_time
    assert failed.last_attempt.dispatch_time.timestamp() == cloud.now()
    assert failed.last_attempt.response_status.code == 4


def test_status_of_an_answer(cloud):
    """An answer's HTTP status becomes the code of the last attempt (REF#attempt)."""
    task = cloud.create()
    cloud.deliver(503)

    status = cloud.client.get_task(name=task.name).last_attempt.response_status

    assert (status.code, status.message) == (14, "UNAVAILABLE(14): HTTP status code 503")


# --- deletion --------------------------------------------------------------


def test_deleted_task_is_not_dispatched(cloud):
    """A scheduled task can be deleted (REF#deletetask)."""
    task = cloud.create()

    cloud.client.delete_task(name=task.name)

    assert cloud.begin() == []


def test_running_task_is_deleted_but_not_stopped(cloud):
    """A dispatched task can be deleted: its failure then brings no retry (REF#deletetask)."""
    task = cloud.create()
    attempt = cloud.begin()[0]

    cloud.client.delete_task(name=task.name)
    cloud.engine.end_attempt(attempt.id, status=500)
    cloud.advance(DAY_S)

    assert cloud.begin() == []


def test_ended_task_cannot_be_deleted(cloud):
    """A task that succeeded cannot be deleted (REF#deletetask)."""
    task = cloud.create()
    cloud.deliver(200)

    with pytest.raises(exceptions.NotFound):
        cloud.client.delete_task(name=task.name)


def test_task_is_kept_for_31_days(cloud):
    """After 31 days a task is deleted, dispatched or not (REF#createqueue)."""
    task = cloud.create()
    cloud.client.pause_queue(name=cloud.queue)
    cloud.advance(31 * DAY_S - 1)
    assert cloud.client.get_task(name=task.name)
    cloud.advance(2)

    with pytest.raises(exceptions.NotFound):
        cloud.client.get_task(name=task.name)
