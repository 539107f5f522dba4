"""Cron: what it calls, when, and what it makes of the answer."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from rollforward.local.cron.cron import BadCronFileError, Cron, UnknownJobError, read_jobs
from rollforward.local.cron.schedules import BadScheduleError

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class MovableClock:
    """A clock that a test sets."""

    def __init__(self):
        self.at = NOON

    def __call__(self):
        return self.at


def write(folder, text):
    path = folder / "cron.yaml"
    path.write_text(text, encoding="latin-1")
    return path


@pytest.fixture
def clock():
    """A clock at noon."""
    return MovableClock()


@pytest.fixture
def cron_yaml(tmp_path):
    """A cron.yaml with one job every five minutes."""
    return write(tmp_path, "cron:\n- url: /cron/sweep\n  schedule: every 5 minutes\n")


def with_cron(cron, *steps):
    """Run async steps on an open cron, and return the last one's result."""

    async def run():
        await cron.open()  # not start(): its loop would race the test for due jobs
        try:
            results = [await step() for step in steps]
        finally:
            await cron.stop()
        return results[-1]

    return asyncio.run(run())


def test_a_due_job_is_a_get_with_app_engines_header(sweeping_app, clock, cron_yaml):
    """App Engine's header and the owner's token are both sent: the app picks what it trusts."""
    cron = Cron(sweeping_app.url, mint=lambda audience: f"token-for-{audience}", now=clock)
    cron.load(cron_yaml)
    clock.at = NOON + timedelta(minutes=5)

    runs = with_cron(cron, cron.tick)

    path, headers = sweeping_app.requests[0]
    assert path == "/cron/sweep"
    assert headers["x-appengine-cron"] == "true"
    assert headers["authorization"] == f"Bearer token-for-{sweeping_app.url}"
    assert [(run.ok, run.said) for run in runs] == [(True, "掃除した")]


def test_a_job_that_is_not_due_is_left_alone(sweeping_app, clock, cron_yaml):
    """Nothing is called before its time."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)

    assert with_cron(cron, cron.tick) == []
    assert sweeping_app.requests == []


def test_missed_runs_count_as_one(sweeping_app, clock, cron_yaml):
    """After a night's sleep a job runs once, and then at its next regular time."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)
    clock.at = NOON + timedelta(hours=8)

    with_cron(cron, cron.tick, cron.tick)

    assert len(sweeping_app.requests) == 1
    assert cron.job("/cron/sweep").next_run == clock.at + timedelta(minutes=5)


def test_a_clock_that_is_put_back_delays_no_run_by_more_than_a_period(
    sweeping_app, clock, cron_yaml
):
    """As the clock of a virtual machine is: no sweep came for as long as it was put back."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)

    def put_back():
        clock.at = NOON - timedelta(hours=3)
        return cron.tick()

    def wait():
        clock.at += timedelta(minutes=5)
        return cron.tick()

    with_cron(cron, put_back, wait)

    assert len(sweeping_app.requests) == 1


def test_a_paused_job_runs_only_by_hand(sweeping_app, clock, cron_yaml):
    """Pause holds the schedule, not the Run now button."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)
    cron.pause("/cron/sweep")
    clock.at = NOON + timedelta(hours=1)

    with_cron(cron, cron.tick, lambda: cron.run_now("/cron/sweep"))

    assert len(sweeping_app.requests) == 1
    assert cron.job("/cron/sweep").next_runs() == []


def test_a_resumed_job_waits_for_its_next_regular_run(sweeping_app, clock, cron_yaml):
    """Resuming does not make up for what the pause skipped."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)
    cron.pause("/cron/sweep")
    clock.at = NOON + timedelta(hours=1)

    cron.pause("/cron/sweep", False)

    assert cron.job("/cron/sweep").next_run == clock.at + timedelta(minutes=5)


def test_the_loop_runs_what_is_due_by_itself(sweeping_app, clock, cron_yaml):
    """Once started, nobody has to call tick()."""
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)
    clock.at = NOON + timedelta(minutes=6)

    async def run():
        await cron.start()
        while not cron.job("/cron/sweep").runs:
            await asyncio.sleep(0.01)
        await cron.stop()

    asyncio.run(run())

    assert [path for path, _ in sweeping_app.requests] == ["/cron/sweep"]


def test_a_failing_answer_is_kept_as_the_last_result(sweeping_app, clock, cron_yaml):
    """A 503 is a failure, and its text is there to be read."""
    sweeping_app.status = 503
    cron = Cron(sweeping_app.url, now=clock)
    cron.load(cron_yaml)

    run = with_cron(cron, lambda: cron.run_now("/cron/sweep"))

    assert (run.ok, run.status, run.by_hand) == (False, 503, True)
    assert cron.job("/cron/sweep").failures == 1


def test_an_app_that_does_not_answer_is_a_failed_run(clock, cron_yaml):
    """Nobody listening is a result too, not an end of cron."""
    cron = Cron("http://127.0.0.1:1", now=clock)
    cron.load(cron_yaml)

    run = with_cron(cron, lambda: cron.run_now("/cron/sweep"))

    assert (run.ok, run.status) == (False, None)


def test_an_unknown_job_is_an_error(clock, cron_yaml):
    """A name that is not in the file runs nothing."""
    cron = Cron("http://127.0.0.1:1", now=clock)
    cron.load(cron_yaml)

    with pytest.raises(UnknownJobError):
        cron.pause("/cron/nothing")


def test_a_changed_file_keeps_the_state_of_jobs_that_stay(tmp_path, clock, cron_yaml):
    """Reading cron.yaml again neither resumes a paused job nor delays a waiting one."""
    cron = Cron("http://127.0.0.1:1", now=clock)
    cron.load(cron_yaml)
    cron.pause("/cron/sweep")
    clock.at = NOON + timedelta(minutes=3)
    both = cron_yaml.read_text() + "- url: /cron/other\n  schedule: every day 00:00\n"

    cron.load(write(tmp_path, both))

    assert list(cron.jobs) == ["/cron/sweep", "/cron/other"]
    assert cron.job("/cron/sweep").paused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cron: 5", "a list called cron"),
        ("jobs: []", "a list called cron"),
        ("cron:\n- just text", "url and schedule"),
        ("cron:\n- url: /x", "schedule"),
        ("cron:\n- url: x\n  schedule: every 1 mins", "from /"),
        ("cron:\n- url: /x\n  schedule: every 1 mins\n  timezone: Mars/Base", "timezone"),
        ("cron: [", "cannot be read"),
        ("# t\xe4glich\n", "cannot be read"),
        ("cron:\n- url: /x\n  schedule: 2026-11-31", "cannot be read: day is out of range"),
    ],
)
def test_a_bad_cron_file_is_refused_with_a_reason(tmp_path, text, complaint):
    """What is wrong with the file is said, and nothing is loaded."""
    with pytest.raises(BadCronFileError, match=complaint):
        read_jobs(write(tmp_path, text), NOON)


def test_a_bad_schedule_in_the_file_changes_nothing(tmp_path, clock, cron_yaml):
    """The jobs of the last good file go on."""
    cron = Cron("http://127.0.0.1:1", now=clock)
    cron.load(cron_yaml)

    with pytest.raises(BadScheduleError):
        cron.load(write(tmp_path, "cron:\n- url: /y\n  schedule: never"))

    assert list(cron.jobs) == ["/cron/sweep"]


def test_an_empty_file_has_no_jobs(tmp_path):
    """An empty cron.yaml is allowed."""
    assert read_jobs(write(tmp_path, ""), NOON) == []
