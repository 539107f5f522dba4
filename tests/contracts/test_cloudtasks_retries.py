"""Which tasks run when: retries, limits, rates, throttling, forced runs.

REF is cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2

from tests.contracts.conftest import NOW, PARENT, Cloud

pytestmark = pytest.mark.fast

DAY_S = 86400


def waits(cloud: Cloud, count: int, status: int = 500) -> list[float]:
    """Let the queue's only task fail again and again; return the waits between its attempts."""
    found = []
    for _ in range(count):
        (attempt,) = cloud.deliver(status)
        assert attempt.next_retry_at is not None
        wait_s = attempt.next_retry_at - cloud.now()
        found.append(round(wait_s, 3))
        cloud.advance(wait_s)
    return found


def seconds(value: float) -> dict[str, int]:
    """Return a Duration for the client."""
    whole = int(value)
    return {"seconds": whole, "nanos": round((value - whole) * 1e9)}


# --- success and failure --------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success(cloud, status):
    """An answer from 200 to 299 removes the task (REF#httprequest)."""
    task = cloud.create()
    cloud.deliver(status)
    cloud.advance(DAY_S - 1)

    assert cloud.begin() == []
    with pytest.raises(exceptions.NotFound):
        cloud.client.get_task(name=task.name)


@pytest.mark.parametrize("status", [100, 199, 300, 304, 400, 404, 429, 500, 503])
def test_failure(cloud, status):
    """Any other answer is a failed attempt, and the task is retried (REF#httprequest)."""
    cloud.create()
    cloud.deliver(status)
    cloud.advance(3600)

    assert [attempt.number for attempt in cloud.begin()] == [1]


def test_no_answer_is_a_failure(cloud):
    """No response is a failed attempt (REF#httprequest)."""
    cloud.create()
    attempt = cloud.begin()[0]
    cloud.engine.end_attempt(attempt.id, error="UNAVAILABLE: connection refused")
    cloud.advance(3600)

    assert len(cloud.begin()) == 1


# --- backoff --------------------------------------------------------------


def test_backoff_doubles_then_grows_linearly_then_stays(cloud):
    """10 s, 3 doublings, 300 s: 10, 20, 40, 80, 160, 240, 300, 300 (REF#retryconfig)."""
    cloud.configure(
        retry_config__min_backoff=seconds(10),
        retry_config__max_backoff=seconds(300),
        retry_config__max_doublings=3,
    )
    cloud.create()

    assert waits(cloud, 8) == [10, 20, 40, 80, 160, 240, 300, 300]


def test_backoff_below_a_second(cloud):
    """The default backoff starts at 100 ms (tasks/docs/configuring-queues)."""
    cloud.create()

    assert waits(cloud, 4) == [0.1, 0.2, 0.4, 0.8]


def test_backoff_of_a_task_overrides_the_queues(cloud):
    """A task's retry_config overrides the queue's, where it is set (REF#task)."""
    cloud.configure(retry_config__max_backoff=seconds(50))
    cloud.create(retry_config={"min_backoff": seconds(30)})

    assert waits(cloud, 3) == [30, 50, 50]


def test_doublings_of_a_task_override_the_queues(cloud):
    """A task's max_doublings stand for the queue's (REF#task)."""
    cloud.create(retry_config={"min_backoff": seconds(10), "max_doublings": 1})

    assert waits(cloud, 4) == [10, 20, 40, 60]


def test_retry_config_of_a_task_is_checked(cloud):
    """A task's retry_config has the queue's ranges (REF#task)."""
    with pytest.raises(exceptions.InvalidArgument, match="maxAttempts"):
        cloud.create(retry_config={"max_attempts": -2})


def test_schedule_time_of_a_retry(cloud):
    """A failed task shows when it is retried (REF#retryconfig)."""
    task = cloud.create()
    cloud.deliver(500)

    retried = cloud.client.get_task(name=task.name)

    assert retried.schedule_time.timestamp() == pytest.approx(NOW + 0.1)


# --- giving up ------------------------------------------------------------


def attempts_until_dropped(cloud: Cloud, step_s: float, most: int = 50) -> int:
    """Let the only task fail every step_s seconds; return the number of its attempts."""
    for number in range(most):
        if not cloud.deliver(500):
            return number
        cloud.advance(step_s)
    return most


def test_max_attempts_counts_the_first(cloud):
    """max_attempts includes the first attempt (REF#retryconfig)."""
    cloud.configure(retry_config__max_attempts=3)
    cloud.create()

    assert attempts_until_dropped(cloud, 3600) == 3


def test_max_attempts_of_a_task(cloud):
    """A task's max_attempts overrides the queue's (REF#task)."""
    cloud.create(retry_config={"max_attempts": 2})

    assert attempts_until_dropped(cloud, 3600) == 2


def test_unlimited_attempts(cloud):
    """max_attempts of -1 is unlimited (REF#retryconfig)."""
    cloud.configure(retry_config__max_attempts=-1)
    cloud.create()

    assert attempts_until_dropped(cloud, 3600, most=150) == 150


@pytest.mark.parametrize(
    ("max_attempts", "max_duration_s", "expected"),
    [(3, 100, 12), (20, 100, 20), (-1, 100, 12), (3, 0, 3)],
)
def test_both_limits_must_be_used_up(cloud, max_attempts, max_duration_s, expected):
    """Retries end when max_attempts and max_retry_duration are both used up (REF#retryconfig).

    The task fails every 9 seconds: the attempt at 99 s is the last before the
    duration ends, the twelfth, unless max_attempts wants more.
    """
    cloud.configure(
        retry_config__max_attempts=max_attempts,
        retry_config__max_retry_duration=seconds(max_duration_s),
        retry_config__min_backoff=seconds(1),
        retry_config__max_backoff=seconds(1),
    )
    cloud.create()

    assert attempts_until_dropped(cloud, 9.1) == expected


def test_dropped_task_is_gone(cloud):
    """A task out of retries is deleted (REF#retryconfig)."""
    cloud.configure(retry_config__max_attempts=1)
    task = cloud.create()
    cloud.deliver(500)

    with pytest.raises(exceptions.NotFound):
        cloud.client.get_task(name=task.name)


# --- rate and concurrency -------------------------------------------------


def fill(cloud: Cloud, count: int) -> None:
    """Create so many tasks."""
    for _ in range(count):
        cloud.create()


def test_burst(cloud):
    """A full bucket lets max_burst_size tasks go at once (REF#ratelimits)."""
    burst = cloud.client.get_queue(name=cloud.queue).rate_limits.max_burst_size
    fill(cloud, burst + 10)

    assert len(cloud.begin()) == burst


def test_rate(cloud):
    """The bucket is refilled by max_dispatches_per_second (REF#ratelimits)."""
    cloud.configure(rate_limits__max_dispatches_per_second=5)
    fill(cloud, 40)
    burst = cloud.client.get_queue(name=cloud.queue).rate_limits.max_burst_size
    assert len(cloud.begin()) == burst

    counts = []
    for _ in range(3):
        cloud.advance(1)
        counts.append(len(cloud.begin()))

    assert counts == [5, 5, 5]


def test_rate_below_one(cloud):
    """A rate may be less than one task a second (REF#ratelimits)."""
    cloud.configure(rate_limits__max_dispatches_per_second=0.1)
    fill(cloud, 30)
    cloud.begin()
    cloud.advance(9.9)
    assert cloud.begin() == []
    cloud.advance(0.1)

    assert len(cloud.begin()) == 1


def test_concurrency(cloud):
    """At most max_concurrent_dispatches run at the same time (REF#ratelimits)."""
    cloud.configure(rate_limits__max_concurrent_dispatches=3)
    fill(cloud, 10)
    running = cloud.begin()
    assert len(running) == 3
    cloud.advance(60)
    assert cloud.begin() == []

    cloud.engine.end_attempt(running[0].id, status=200)

    assert len(cloud.begin()) == 1


def test_queues_do_not_share_limits(cloud):
    """Limits are a queue's own (REF#ratelimits)."""
    other = cloud.client.create_queue(parent=PARENT, queue={"name": f"{PARENT}/queues/other"})
    cloud.configure(rate_limits__max_concurrent_dispatches=1)
    fill(cloud, 5)
    for _ in range(5):
        cloud.client.create_task(parent=other.name, task={"http_request": cloud.http()})

    assert len(cloud.begin()) == 1 + 5


# --- throttling -----------------------------------------------------------


def throttled_count(cloud: Cloud, status: int, target: str, headers: dict[str, str]) -> int:
    """Answer one task so, then return how many of many tasks a full bucket lets go."""
    task = {} if target == "http" else {"app_engine_http_request": {}}
    cloud.create("first", **task)
    (attempt,) = cloud.begin()
    fill(cloud, 200)
    cloud.engine.end_attempt(attempt.id, status=status, headers=headers)
    return len(cloud.begin())


@pytest.mark.parametrize(
    ("target", "status", "is_throttled"),
    [
        ("http", 429, True),
        ("http", 503, True),
        ("http", 500, True),
        ("http", 404, False),
        ("app_engine", 503, True),
        ("app_engine", 429, False),
    ],
)
def test_which_answers_throttle_the_queue(cloud, target, status, is_throttled):
    """429 and 5xx slow an HTTP target's queue, only 503 an App Engine target's (PITFALLS)."""
    count = throttled_count(cloud, status, target, {})

    assert (count < 99) is is_throttled


def test_throttled_queue_recovers_step_by_step(cloud):
    """Throttling is temporary; the queue's own settings stay as they are (REF#httprequest)."""
    fill(cloud, 700)
    for _ in range(3):
        cloud.deliver(503)
        cloud.advance(1)
    cloud.begin()

    counts = []
    for _ in range(4):
        cloud.advance(0.125)  # Worth 62.5 tasks at 500 a second.
        counts.append(len(cloud.begin()))
        cloud.advance(1.875)
        cloud.begin()
    limits = cloud.client.get_queue(name=cloud.queue).rate_limits

    assert counts == [8, 15, 31, 62]
    assert limits.max_dispatches_per_second == 500


def test_repeated_throttling_slows_more(cloud):
    """Each further second of 503 slows the queue more (REF#httprequest)."""
    fill(cloud, 400)
    counts = []
    for _ in range(4):
        counts.append(len(cloud.deliver(503)))
        cloud.advance(1)

    assert counts[1] > counts[2] > counts[3]


def test_retry_after_is_considered(cloud):
    """A Retry-After header delays the retry and the recovery (REF#httprequest)."""
    cloud.create("first")

    (attempt,) = cloud.deliver(429, {"retry-after": "120"})

    assert attempt.next_retry_at == cloud.now() + 120


def test_retry_after_as_a_date(cloud):
    """Retry-After may be a date (datatracker.ietf.org/doc/html/rfc9110#field.retry-after)."""
    cloud.create("first")  # The clock stands at Fri, 15 Jan 2027 08:00:00 GMT.

    (attempt,) = cloud.deliver(503, {"Retry-After": "Fri, 15 Jan 2027 08:05:00 GMT"})

    assert attempt.next_retry_at == cloud.now() + 300


@pytest.mark.parametrize("date", ["soon", "Fri, 15 Jan 99999999999 08:05:00 GMT"])
def test_a_retry_after_that_is_no_date_is_passed_over(cloud, date):
    """An error of ours would leave the attempt running, and its task would never come again."""
    cloud.create("first")

    (attempt,) = cloud.deliver(503, {"Retry-After": date})

    assert cloud.now() < attempt.next_retry_at < cloud.now() + 60


def test_retry_after_without_throttling(cloud):
    """Retry-After belongs to 429 and 503; with another answer it says nothing (REF#httprequest)."""
    cloud.create("first")

    (attempt,) = cloud.deliver(500, {"Retry-After": "120"})

    assert attempt.next_retry_at == pytest.approx(cloud.now() + 0.1)


# --- RunTask --------------------------------------------------------------


@pytest.mark.parametrize("hindrance", ["paused", "later", "rate", "concurrency"])
def test_run_task_ignores_limits(cloud, hindrance):
    """RunTask dispatches in a paused queue, before its time, past the limits (REF#runtask)."""
    if hindrance == "concurrency":
        cloud.configure(rate_limits__max_concurrent_dispatches=1)
    if hindrance in ("rate", "concurrency"):
        fill(cloud, 120)
        cloud.begin()
    task = cloud.create_in(3600 if hindrance == "later" else 0, "forced")
    if hindrance == "paused":
        cloud.client.pause_queue(name=cloud.queue)
    assert cloud.begin() == []

    cloud.client.run_task(name=task.name)

    (attempt,) = cloud.begin()
    assert attempt.task.name == task.name


def test_run_task_is_one_dispatch(cloud):
    """A task that RunTask dispatched is not dispatched a second time when it is due (REF)."""
    task = cloud.create()
    cloud.client.run_task(name=task.name)

    assert len(cloud.deliver(200)) == 1
    cloud.advance(60)
    assert cloud.begin() == []


def test_run_task_that_is_running(cloud):
    """RunTask dispatches a task even if it is already running (REF#runtask)."""
    task = cloud.create()
    (first,) = cloud.begin()
    cloud.client.run_task(name=task.name)

    (second,) = cloud.begin()

    assert (first.task.name, second.task.name) == (task.name, task.name)
    cloud.engine.end_attempt(second.id, status=200)
    with pytest.raises(exceptions.NotFound):
        cloud.client.get_task(name=task.name)


def test_task_that_runs_twice_is_retried_once(cloud):
    """Of two attempts at the same time the last failure brings the one retry (REF#runtask)."""
    task = cloud.create()
    (first,) = cloud.begin()
    cloud.client.run_task(name=task.name)
    (second,) = cloud.begin()

    cloud.engine.end_attempt(first.id, status=500)
    cloud.advance(3600)
    assert cloud.begin() == []
    cloud.engine.end_attempt(second.id, status=500)
    cloud.advance(3600)

    assert [attempt.number for attempt in cloud.begin()] == [2]


def test_failed_run_is_rescheduled_from_its_start(cloud):
    """A failed RunTask schedules the retry from the time it was called (REF#runtask)."""
    cloud.configure(retry_config__min_backoff=seconds(100))
    task = cloud.create_in(3600)
    cloud.client.run_task(name=task.name)
    (attempt,) = cloud.begin()
    cloud.advance(30)

    cloud.engine.end_attempt(attempt.id, status=500)

    assert attempt.next_retry_at == NOW + 100


def test_run_task_that_ended(cloud):
    """RunTask of a task that succeeded or failed for good is NOT_FOUND (REF#runtask)."""
    task = cloud.create()
    cloud.deliver(200)

    with pytest.raises(exceptions.NotFound):
        cloud.client.run_task(name=task.name)


def test_run_task_shows_the_task(cloud):
    """RunTask returns the task, due now (REF#runtask)."""
    task = cloud.create_in(3600)

    ran = cloud.client.run_task(name=task.name)

    assert ran.schedule_time.timestamp() == cloud.now()
    assert isinstance(ran, tasks_v2.Task)
