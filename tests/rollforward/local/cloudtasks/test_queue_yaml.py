"""queue.yaml: the mapping of a deployment, its errors, and its reload."""

import os
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.tasks_v2beta2 import CloudTasksClient

from rollforward.local.cloudtasks import queue_yaml
from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.emulator import running
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.queue_yaml import QueueYamlError
from rollforward.local.cloudtasks.store.store import Store

PLACE = Place("demo-local", "us-central1")
PARENT = PLACE.parent


def read_one(tmp_path: Path, fields: str) -> Any:
    """Return the queue of a file with one queue of these fields."""
    path = tmp_path / "queue.yaml"
    path.write_text(f"queue:\n- name: work\n{fields}")
    return queue_yaml.read(path, PLACE).queues[0]


def indented(*lines: str) -> str:
    """Return lines as fields of a queue."""
    return "".join(f"  {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("rate", "per_s"), [("5/s", 5), ("30/m", 0.5), ("90/h", 0.025), ("43200/d", 0.5), ("0", 0)]
)
def test_rate(tmp_path, rate, per_s):
    """A rate is per second, minute, hour or day (tasks/docs/queue-yaml#rate)."""
    queue = read_one(tmp_path, indented(f"rate: {rate}"))

    assert queue.rate_limits.max_dispatches_per_second == pytest.approx(per_s)
    assert queue.state == (messages.PAUSED if per_s == 0 else messages.RUNNING)


def test_defaults(tmp_path):
    """Absent fields get the defaults of a deployment (tasks/docs/queue-yaml)."""
    queue = read_one(tmp_path, indented("rate: 5/s"))

    limits, retries = queue.rate_limits, queue.retry_config
    assert (limits.max_burst_size, limits.max_concurrent_dispatches) == (5, 1000)
    assert (retries.max_attempts, retries.max_doublings) == (-1, 16)
    assert messages.seconds_of(retries.min_backoff) == pytest.approx(0.1)
    assert messages.seconds_of(retries.max_backoff) == 3600


def test_all_fields(tmp_path):
    """Each field has its counterpart in the v2 queue (tasks/docs/queue-yaml)."""
    queue = read_one(
        tmp_path,
        indented(
            "rate: 5/s",
            "mode: push",
            "bucket_size: 40",
            "max_concurrent_requests: 10",
            "target: v2.worker",
            "retry_parameters:",
            "  task_retry_limit: 7",
            "  task_age_limit: 2d",
            "  min_backoff_seconds: 0.5",
            "  max_backoff_seconds: 20",
            "  max_doublings: 0",
        ),
    )

    limits, retries = queue.rate_limits, queue.retry_config
    assert queue.name == PLACE.queue_name("work")
    assert (limits.max_burst_size, limits.max_concurrent_dispatches) == (40, 10)
    routing = queue.app_engine_routing_override
    assert (routing.version, routing.service) == ("v2", "worker")
    assert (retries.max_attempts, retries.max_doublings) == (8, 0)
    assert messages.seconds_of(retries.max_retry_duration) == 2 * 86400
    assert messages.seconds_of(retries.min_backoff) == 0.5
    assert messages.seconds_of(retries.max_backoff) == 20


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("max_backoff_seconds: 0.05", (0.05, 0.05)),
        ("min_backoff_seconds: 5000", (5000, 5000)),
        ("min_backoff_seconds: 2", (2, 3600)),
    ],
)
def test_one_backoff_pulls_the_other(tmp_path, given, expected):
    """If only one backoff is given the other is pulled to fit (as gcloud app deploy does)."""
    retries = read_one(
        tmp_path, indented("rate: 5/s", "retry_parameters:", f"  {given}")
    ).retry_config

    assert messages.seconds_of(retries.min_backoff) == pytest.approx(expected[0])
    assert messages.seconds_of(retries.max_backoff) == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (["rate: fast"], "rate"),
        (["rate: 501/s"], "rate"),
        (["bucket_size: 5"], "rate"),
        (["rate: 5/s", "bucket_size: 501"], "bucket_size"),
        (["rate: 5/s", "bucket_size: many"], "bucket_size"),
        (["rate: 5/s", "max_concurrent_requests: 0"], "max_concurrent_requests"),
        (["rate: 5/s", "max_concurrent_requests: 5001"], "max_concurrent_requests"),
        (["rate: 5/s", "mode: poll"], "mode"),
        (["rate: 5/s", "mode: [pull]"], "mode"),
        (["mode: pull", "rate: 5/s"], "rate: is not a field of a pull queue"),
        (["mode: pull", "bucket_size: 5"], "bucket_size: is not a field of a pull queue"),
        (["rate: 5/s", "acl: []"], "acl: is not a field of queue.yaml"),
        (["rate: 5/s", "target: A B"], "target"),
        (["rate: 5/s", "nonsense: 1"], "nonsense"),
        (["rate: 5/s", "retry_parameters: 3"], "retry_parameters"),
        (["rate: 5/s", "retry_parameters:", "  task_retry_limit: -1"], "task_retry_limit"),
        (["rate: 5/s", "retry_parameters:", "  task_age_limit: 2w"], "task_age_limit"),
        (["rate: 5/s", "retry_parameters:", "  min_backoff_seconds: x"], "min_backoff_seconds"),
        (["rate: 5/s", "retry_parameters:", "  nonsense: 1"], "nonsense"),
        (
            [
                "rate: 5/s",
                "retry_parameters:",
                "  min_backoff_seconds: 2",
                "  max_backoff_seconds: 1",
            ],
            "min_backoff_seconds",
        ),
    ],
)
def test_errors_name_file_queue_and_field(tmp_path, fields, named):
    """What is wrong is told with its file, queue and field."""
    with pytest.raises(QueueYamlError) as caught:
        read_one(tmp_path, indented(*fields))

    text = str(caught.value)
    assert str(tmp_path / "queue.yaml") in text
    assert "queue work" in text
    assert f"{named}:" in f"{text}:"


@pytest.mark.parametrize(
    "text",
    [
        "queue: 5",
        "- a",
        "queue:\n- rate: 5/s",
        "queue:\n- name: a_b\n  rate: 5/s",
        "queue:\n- name: a\n  rate: 5/s\n- name: a\n  rate: 5/s",
        "queue: [",
        "nonsense: 1",
        "queue:\n- text",
        "# t\xe4glich",
        "queue: 2026-11-31",
        "queue:\n- name: a\n  rate: 5/s\n  retry_parameters: {task_retry_limit: 9999999999}",
        "queue:\n- name: a\n  rate: 5/s\n  retry_parameters: {max_backoff_seconds: .inf}",
    ],
)
def test_file_that_cannot_be_used(tmp_path, text):
    """A file of another form is refused, and named."""
    path = tmp_path / "queue.yaml"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(QueueYamlError, match=r"queue\.yaml"):
        queue_yaml.read(path, PLACE)


def test_missing_file(tmp_path):
    """A missing file is refused, and named."""
    with pytest.raises(QueueYamlError, match=r"nowhere\.yaml"):
        queue_yaml.read(tmp_path / "nowhere.yaml", PLACE)


def test_the_projects_own_file():
    """The queue.yaml of this repository can be used."""
    path = Path(__file__).parents[4] / "queue.yaml"

    assert queue_yaml.read(path, PLACE).queues


# --- applied --------------------------------------------------------------


@pytest.fixture
def engine():
    """An engine without queues."""
    made = Engine(Store(None), PLACE, AppEngineApp(""), clock=Clock(lambda: 1.8e9), in_memory=True)
    yield made
    made.close()


def deploy(engine: Engine, tmp_path: Path, text: str) -> bool:
    """Apply a file of these contents."""
    path = tmp_path / "queue.yaml"
    path.write_text(text)
    return queue_yaml.apply(engine, queue_yaml.read(path, PLACE))


def state(engine: Engine, queue_id: str) -> int:
    """Return a queue's state."""
    return engine.queues.get(PLACE.queue_name(queue_id)).state


A, B, DEFAULT = (f"- name: {name}\n  rate: 5/s\n" for name in ("a", "b", "default"))


def test_queues_missing_from_the_file_are_paused(engine, tmp_path):
    """A deployment pauses the queues that it does not name, except default."""
    deploy(engine, tmp_path, f"queue:\n{A}{B}{DEFAULT}")

    deploy(engine, tmp_path, f"queue:\n{A}")

    states = [state(engine, queue_id) for queue_id in ("a", "b", "default")]
    assert states == [messages.RUNNING, messages.PAUSED, messages.RUNNING]


def test_deployment_resumes_queues(engine, tmp_path):
    """A deployment resumes a queue paused by hand, unless the file says otherwise."""
    deploy(engine, tmp_path, f"queue:\n{A}{B}")
    for queue_id in ("a", "b"):
        engine.pause_queue(PLACE.queue_name(queue_id))

    deploy(engine, tmp_path, f"resume_paused_queues: false\nqueue:\n{A}{B}")
    assert state(engine, "a") == messages.PAUSED

    deploy(engine, tmp_path, f"queue:\n{A}{B}# changed\n")
    assert state(engine, "a") == messages.RUNNING


def test_same_file_is_no_deployment(engine, tmp_path):
    """A file that was applied last is not applied again: a pause by hand outlives a restart."""
    assert deploy(engine, tmp_path, f"queue:\n{A}")
    engine.pause_queue(PLACE.queue_name("a"))

    assert not deploy(engine, tmp_path, f"queue:\n{A}")
    assert state(engine, "a") == messages.PAUSED


@pytest.mark.parametrize("is_updated", [False, True])
def test_names_of_yaml_queues_are_blocked_for_9_days(engine, tmp_path, is_updated):
    """In a queue of queue.yaml a name is blocked for 9 days (CreateTaskRequest), updated or not."""
    deploy(engine, tmp_path, f"queue:\n{A}")
    if is_updated:
        queue = engine.queues.get(PLACE.queue_name("a"))
        engine.queues.update(queue, ["retry_config.max_attempts"])
    task = messages.Task(name=f"{PLACE.queue_name('a')}/tasks/t")
    task.http_request.url = "http://handler.invalid"
    engine.tasks.create(PLACE.queue_name("a"), task)
    engine.tasks.delete(task.name)
    engine.advance(9 * 86400 - 1)
    with pytest.raises(Refused, match="already exists"):
        engine.tasks.create(PLACE.queue_name("a"), task)

    engine.advance(1)

    assert engine.tasks.create(PLACE.queue_name("a"), task).name == task.name


def test_tasks_of_yaml_queues_are_kept_for_10_years(engine, tmp_path):
    """A task in a queue of queue.yaml outlives 31 days: gcloud deploys it with 10 years."""
    deploy(engine, tmp_path, f"queue:\n{A}")
    queue = PLACE.queue_name("a")
    engine.pause_queue(queue)
    task = messages.Task(name=f"{queue}/tasks/t")
    task.http_request.url = "http://handler.invalid"
    engine.tasks.create(queue, task)

    engine.advance(3650 * 86400)
    assert engine.get_task(task.name).name == task.name
    engine.advance(1)

    with pytest.raises(Refused):
        engine.get_task(task.name)


def test_update_resets_the_burst(engine, tmp_path):
    """UpdateQueue on a queue of queue.yaml resets its burst (RateLimits.max_burst_size)."""
    deploy(engine, tmp_path, f"queue:\n{A}")
    name = PLACE.queue_name("a")
    assert engine.queues.get(name).rate_limits.max_burst_size == 5

    engine.queues.update(engine.queues.get(name), ["retry_config.max_attempts"])

    assert engine.queues.get(name).rate_limits.max_burst_size == 10


PULL = "- name: a\n  mode: pull\n  retry_parameters:\n    task_retry_limit: 1\n"


def test_a_pull_queue(tmp_path):
    """A queue with `mode: pull` has tasks for leases, and drops one that was leased in vain."""
    path = tmp_path / "queue.yaml"
    path.write_text(f"queue:\n{PULL}{B}")
    with (
        running(queue_yaml=path, clock=lambda: 1.8e9) as emulator,
        grpc.insecure_channel(emulator.grpc_address) as channel,
    ):
        transport = CloudTasksClient.get_transport_class("grpc")(channel=channel)
        client, name = CloudTasksClient(transport=transport), PLACE.queue_name("a")
        kinds = ["pull_target" in queue for queue in client.list_queues(parent=PARENT)]
        assert kinds == [True, False]
        client.create_task(parent=name, task={"pull_message": {"payload": b"p", "tag": "t"}})
        request = {"parent": name, "max_tasks": 1, "lease_duration": {"seconds": 60}}
        request["response_view"] = "FULL"
        for _ in range(2):
            (task,) = client.lease_tasks(request=request).tasks
            assert (task.pull_message.payload, task.pull_message.tag) == (b"p", "t")
            emulator.engine.advance(61)

        assert not client.lease_tasks(request=request).tasks
        assert client.get_queue(name=name).state == messages.RUNNING


@pytest.mark.parametrize(("first", "second"), [(A, PULL), (PULL, A)])
def test_a_queue_does_not_change_between_push_and_pull(engine, tmp_path, first, second):
    """Tasks of one mode cannot be those of the other: the file is refused, and changes nothing."""
    deploy(engine, tmp_path, f"queue:\n{first}")
    was_pull = engine.queues.is_pull(PLACE.queue_name("a"))

    with pytest.raises(QueueYamlError, match="queue a: mode: cannot change"):
        deploy(engine, tmp_path, f"queue:\n{B}{second}")

    assert engine.queues.is_pull(PLACE.queue_name("a")) == was_pull
    assert [queue.name for queue in engine.queues.all()] == [PLACE.queue_name("a")]


def test_a_pull_queue_survives_a_restart(tmp_path):
    """A pull queue of queue.yaml is one again after a restart."""
    path = tmp_path / "queue.yaml"
    path.write_text(f"queue:\n{PULL}")
    for _ in range(2):
        with running(queue_yaml=path, store_path=tmp_path / "tasks.sqlite3") as emulator:
            assert emulator.engine.queues.is_pull(PLACE.queue_name("a"))


def test_file_is_read_again_when_it_changes(tmp_path):
    """A changed file takes effect by itself; a broken one changes nothing and is told."""
    path = tmp_path / "queue.yaml"
    path.write_text(f"queue:\n{A}")
    with running(queue_yaml=path) as emulator:
        path.write_text(f"queue:\n{A}{B}")
        os.utime(path, (1, 1))
        wait_until(lambda: len(emulator.engine.queues.all()) == 2)

        path.write_text("queue: [")
        os.utime(path, (2, 2))
        wait_until(lambda: bool(emulator.emulator.queue_yaml_problem))

        assert "queue.yaml" in emulator.emulator.queue_yaml_problem
        assert len(emulator.engine.queues.all()) == 2


def wait_until(is_so: Any) -> None:
    """Wait for something that another thread does, ten seconds at most."""
    ends_at = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_broken_file_at_the_start(tmp_path):
    """With a broken file the emulator does not start, and says why."""
    path = tmp_path / "queue.yaml"
    path.write_text("queue:\n- name: a\n  rate: fast\n")

    with pytest.raises(QueueYamlError, match="queue a: rate"), running(queue_yaml=path):
        pass
