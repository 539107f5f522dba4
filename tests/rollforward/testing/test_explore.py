"""Exploration finds the planted bugs, names call, line and fault, and passes what is right."""

from __future__ import annotations

import pytest

from rollforward.testing import Exploration, ExploreError, Rollforward
from rollforward.testing.exploration import FAULTS
from rollforward.testing.injection import FAILURES
from tests.infra.runs.sampling import one_emulator
from tests.rollforward.testing.apps.bookings import Booking, Total
from tests.rollforward.testing.conftest import Till

FORM = {"seat": "A1", "guest": "Ada"}
MAX_PLAYS = 60


def book(kit: Rollforward, path: str) -> None:
    kit.client.post(path, data=FORM)
    kit.settle()


def report_of(kit: Rollforward, path: str, check: object, **options: object) -> str:
    """Return what an exploration that finds a bug says."""
    with pytest.raises(ExploreError) as caught:
        kit.explore(lambda: book(kit, path), check, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_sound_app_passes_every_fault(kit: Rollforward) -> None:
    """Each kind of fault is played, and none is a false alarm, rivals included."""

    def check() -> None:
        [booking] = Booking.query().fetch()
        assert booking.is_confirmed

    def rival() -> None:
        kit.visitor().post("/sound", data={**FORM, "guest": "Bob"})

    done = kit.explore(lambda: book(kit, "/sound"), check, meanwhile=rival)

    assert isinstance(done, Exploration)
    assert not done.failures
    assert set(done.plays) == set(FAULTS) - (
        {"overlap", "meanwhile"} if kit.world.services.datastore_kind == "firestore" else set()
    )
    assert sum(done.plays.values()) == done.planned <= MAX_PLAYS
    assert done.missed <= 2
    assert f"explored {len(done.calls)} remote calls in {done.planned} plays" in str(done)


@one_emulator
def test_a_double_booking_by_check_then_put_is_found(kit: Rollforward) -> None:
    """Two visitors at the same moment: the report names the put, and what Bob did."""

    def check() -> None:
        assert len(Booking.query().fetch()) == 1

    def rival() -> None:
        kit.visitor().post("/naive", data={**FORM, "guest": "Bob"})

    report = report_of(kit, "/naive", check, meanwhile=rival)

    assert "meanwhile at call 1 (Commit)" in report
    assert "bookings.py:" in report
    assert "in naive: Booking(seat=seat, guest=guest).put()" in report
    assert "  meanwhile: POST /naive answered 200" in report
    assert "assert 2 == 1" in report


@one_emulator
def test_a_task_that_is_created_after_the_commit_is_found(kit: Rollforward) -> None:
    """A worker that dies in between leaves a booking that nobody confirms."""

    def check() -> None:
        assert Booking.get_by_id("A1").is_confirmed

    report = report_of(kit, "/forgetful", check)

    assert "crash-before at call" in report
    assert "tasks CreateTask of /tasks/confirm" in report
    assert "in forgetful: confirm.enqueue(seat)" in report
    assert "the visitor sends POST /forgetful again" in report


@one_emulator
def test_a_charge_without_a_key_is_found(kit: Rollforward, till: Till) -> None:
    """The provider is a service of the app; the visitor pays twice."""

    def scenario() -> None:
        till.charges.clear()

    def check() -> None:
        assert till.charges == [2_000]

    with pytest.raises(ExploreError) as caught:
        kit.explore([scenario, lambda: book(kit, "/impatient")], check)

    assert "reply-lost at call 0 (Payments.charge)" in str(caught.value)
    assert "assert [2000, 2000] == [2000]" in str(caught.value)


@one_emulator
def test_a_lost_update_in_a_task_is_found(kit: Rollforward) -> None:
    """A total without guard and transaction: delivered twice it counts twice."""

    def check() -> None:
        assert Total.get_by_id("all").seats == 1

    report = report_of(kit, "/careless", check)

    assert (
        "! in /tasks/add-up, call 2, datastore Commit of Total, takes effect, and its reply"
        in report
    )
    assert "in add_up: total.put()" in report
    assert "assert 2 == 1" in report
    assert "\n   doubled" in report


@one_emulator
def test_a_sweep_that_a_fault_breaks_comes_again(kit: Rollforward) -> None:
    """As cron calls it each minute: the app is not at fault."""

    def check() -> None:
        assert kit.cron("/cron/sweep") == 200

    exploration = kit.explore(kit.sweep, check, faults=["error"], limit=6)

    assert exploration.plays.total() == 6


@one_emulator
def test_a_failure_is_replayed_by_what_it_printed(kit: Rollforward) -> None:
    """And a text of other calls is refused, so that no replay proves another thing."""

    def check() -> None:
        assert Total.get_by_id("all").seats == 1

    fault = "reply-lost:DEADLINE_EXCEEDED at call 3 (Commit)"
    report = report_of(kit, "/careless", check)
    faults = [line.partition('only="')[2] for line in report.splitlines() if "replay:" in line]
    again = report_of(kit, "/careless", check, only=faults[-1].removesuffix('")'))
    assert "in 1 plays" in again or "in 1 play" in again

    with pytest.raises(ValueError, match="explore it anew"):
        kit.explore(lambda: book(kit, "/careless"), check, only=fault.replace("Commit", "Lookup"))
    with pytest.raises(ValueError, match="as a failure prints it"):
        kit.explore(lambda: book(kit, "/careless"), check, only="everything")


@one_emulator
def test_bounds_and_choices_limit_the_plays(kit: Rollforward) -> None:
    """Fewer plays, of the services and faults that the test names, and the count says so."""

    def check() -> None:
        assert Booking.get_by_id("A1") is not None

    few = kit.explore(lambda: book(kit, "/sound"), check, limit=5)
    assert sum(few.plays.values()) == 5
    assert f"in 5 of {few.planned} plays" in str(few)

    none = kit.explore(lambda: book(kit, "/sound"), check, time_s=0)
    assert sum(none.plays.values()) == 0

    lost = kit.explore(
        lambda: book(kit, "/sound"), check, faults=["reply-lost"], services=["tasks"]
    )
    assert dict(lost.plays) == {"reply-lost": 1}

    with pytest.raises(ValueError, match="faults must be a collection of error, reply-lost"):
        kit.explore(lambda: book(kit, "/sound"), check, faults=["reply lost"])
    with pytest.raises(ValueError, match="services must be a collection of datastore, tasks"):
        kit.explore(lambda: book(kit, "/sound"), check, services="tasks")


@one_emulator
def test_what_fails_without_a_fault_is_no_finding(kit: Rollforward) -> None:
    """The scenario itself is wrong, or it does nothing that could break."""

    def check() -> None:
        assert Booking.get_by_id("A1") is None, "somebody booked"

    with pytest.raises(ExploreError, match="already without any fault the scenario fails: someb"):
        kit.explore(lambda: book(kit, "/sound"), check)
    with pytest.raises(ExploreError, match="makes no remote call"):
        kit.explore(lambda: None, check)


@one_emulator
def test_a_visitor_of_the_scenario_sends_again_what_a_fault_has_broken(kit: Rollforward) -> None:
    """As `client` does: their page was an error, and that of the first visitor was not."""

    def scenario() -> None:
        assert kit.visitor().post("/careless", data=FORM).status_code == 200

    kit.explore(scenario, lambda: None, faults=["error", "reply-lost"], services=["tasks"])


@one_emulator
def test_a_visitor_sends_again_what_has_the_status_of_a_service(
    kit: Rollforward,
) -> None:
    """As what has lost a race: a limit, 429, or a cancelled call, 499, failed the play."""

    def scenario() -> None:
        for number in range(len(FAILURES)):  # Each call fails in its own way.
            form = {"seat": f"A{number}"}
            assert kit.visitor().post("/frank", data=form).status_code == 200

    exploration = kit.explore(scenario, lambda: None, faults=["error"], services=["datastore"])

    assert exploration.plays.total() == exploration.planned > 0


def test_a_check_may_fail_by_pytests_own_functions(kit: Rollforward) -> None:
    """Until a sweep has come, as by an assertion; and the report has the script."""

    def check() -> None:
        booking = Booking.get_by_id("A1")
        if booking is None or not booking.is_confirmed:
            pytest.fail("A1 is not confirmed")

    kit.explore(lambda: book(kit, "/sound"), check, services=["tasks"])
    report = report_of(kit, "/forgetful", check, faults=["crash-before"])

    assert "=> A1 is not confirmed" in report
    assert 'replay: explore(..., only="crash-before at call' in report


@one_emulator
def test_an_assertion_of_the_other_visitor_fails_the_play(kit: Rollforward) -> None:
    """It was raised in the app's own call, which answered 500 and was sent again."""

    def rival() -> None:
        assert kit.visitor().get("/seats/A1").text == "A1 is for sale"

    report = report_of(
        kit, "/sound", lambda: None, meanwhile=rival, faults=["meanwhile"], services=["tasks"]
    )

    assert "assert 'A1 is taken' == 'A1 is for sale'" in report
    assert "test_explore.py:" in report


@one_emulator
def test_an_exploration_that_would_break_nothing_is_refused(kit: Rollforward) -> None:
    """It passed, whatever the app does."""
    report = report_of(kit, "/sound", lambda: None, services=["app"], faults=["error"])

    assert report.startswith("none of the faults error fits a call of app: the scenario calls ")


def test_rows_that_stay_are_a_finding_unless_they_are_named(kit: Rollforward) -> None:
    """A dead task waits for an operator, whatever the check looks at."""

    def scenario() -> None:
        kit.world.clients.cache.get("x")
        from rollforward.tasks.dead_tasks import dead_letter

        dead_letter(
            kit.clients, path="/tasks/x", queue="default", task_name="t", body=b"", reason="r"
        )

    with pytest.raises(ExploreError, match="DeadTask"):
        kit.explore(scenario, lambda: None)

    done = kit.explore(scenario, lambda: None, leaves=["DeadTask"], faults=["error"])
    assert done.plays["error"] > 0
