"""Planted bugs: each guard of flows is taken out, and the test of its moment fails.

The same tests pass with the guards in place. Guards that decide between two writes are also taken
out of the searches of all interleavings (`test_flows_exhaustively.py`) and of the plays under
faults (`test_flows_under_faults.py`).
"""

from __future__ import annotations

import pytest

from rollforward.flows import changes, sweep, wakes
from rollforward.flows.errors import FlowRefusedError, LeasedError, Suspended, UnknownFlowError
from rollforward.flows.rows import entities, events, pending, records, values
from rollforward.flows.steps import attempt, calls, delivery, names, policy, steps, undoing, waits
from tests.infra.mutation.lines import Bug
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.flows import test_bad_input as bad_input
from tests.rollforward.flows import test_failing_steps as failing
from tests.rollforward.flows import test_steps as stepping
from tests.rollforward.flows import test_takeover as takeover
from tests.rollforward.flows import test_two_versions as versions
from tests.rollforward.flows import test_undoing as undone
from tests.rollforward.flows import test_waiting as waiting
from tests.rollforward.flows.callers import test_callers_transactions as callers
from tests.rollforward.flows.callers import test_strict_limits as limits
from tests.rollforward.flows.planted import test_late_ends as late
from tests.rollforward.flows.planted import test_moments_of_guards as moments
from tests.rollforward.flows.planted import test_wrong_clocks as clocks
from tests.rollforward.flows.probe import probe

Attempt = attempt.FlowAttempt

CHANGES = (
    Bug(
        *(changes, "start", "row.started_by != transaction.id", "False"),
        moments.test_a_second_transaction_starts_no_second_flow,
    ),
    Bug(
        *(changes, "_insert", "bool(stored[0].started_by == row.started_by)", "True"),
        stepping.test_a_flow_starts_once_by_one_write,
        {"fault": ""},
    ),
    Bug(
        *(changes, "start", "wake(clients, flow.task, row)  # If it", "pass  # If it"),
        moments.test_a_start_in_doubt_that_was_made_waits_for_no_sweep,
        {"is_in_transaction": False},
    ),
    Bug(
        *(wakes._Wakes, "on_outcome_unknown", "self.on_commit()", "pass"),
        moments.test_a_start_in_doubt_that_was_made_waits_for_no_sweep,
        {"is_in_transaction": True},
    ),
    Bug(
        *(changes, "signal", "if unique in row.event_ids:", "if False:"),
        waiting.test_an_event_is_kept_once_for_its_id,
    ),
    Bug(
        *(changes, "signal", "bool(row.event_ids[unique] == transaction.id)", "False"),
        waiting.test_an_event_is_kept_once_for_its_id,
    ),
    Bug(
        *(changes, "signal", "if row.has_ended:", "if False:"),
        waiting.test_a_flow_that_has_ended_takes_no_event,
    ),
    Bug(
        *(changes, "signal", "len(row.events) >= events.MAX_UNREAD", "False"),
        bad_input.test_a_flow_keeps_100_events_that_no_step_has_taken,
    ),
    Bug(
        *(changes, "signal", " and row.state == RUNNING", ""),
        undone.test_an_event_wakes_no_flow_that_is_being_undone,
    ),
    Bug(
        *(changes, "cancel", "row.has_ended or row.state == UNDOING", "False"),
        undone.test_a_cancelled_flow_is_undone_as_far_as_it_came,
    ),
    Bug(
        *(changes, "cancel", "row.verdict or CANCELLED", "CANCELLED"),
        undone.test_a_cancellation_does_not_rename_a_rejection,
    ),
    Bug(
        *(changes, "cancel", "row.state == FAILED and row.verdict is not None", "False"),
        versions.test_a_cancelled_flow_waits_for_no_event_to_come_to_what_it_undoes,
    ),
    Bug(
        *(changes, "retry", "if unique in row.retries:", "if False:"),
        undone.test_a_retry_is_made_once_for_its_request,
        errors=(FlowRefusedError,),
    ),
    Bug(
        *(changes, "retry", "generation not in (0, row.generation)", "False"),
        moments.test_a_bulk_retry_leaves_a_flow_that_was_retried_meanwhile,
    ),
    Bug(
        *(changes, "retry", "new_calls and row.verdict is not None", "row.verdict is not None"),
        versions.test_a_cancelled_flow_comes_by_a_new_call_to_those_behind_it_if_a_person_retries_it,
    ),
    Bug(
        *(changes, "_check_retried", "row.state not in (FAILED, SUCCEEDED)", "False"),
        undone.test_a_cancelled_flow_is_undone_as_far_as_it_came,
    ),
    Bug(
        *(changes, "_check_retried", "row.state == SUCCEEDED and not from_step", "False"),
        undone.test_a_retry_from_a_step_gives_its_events_back_and_new_keys,
    ),
    Bug(
        *(changes, "_check_retried", "if from_step and row.verdict:", "if False:"),
        moments.test_a_flow_that_is_being_undone_runs_no_step_again,
    ),
    Bug(
        *(changes, "_drop_from", "events.restore(row, records[name])", "pass"),
        undone.test_a_retry_from_a_step_gives_its_events_back_and_new_keys,
    ),
    Bug(
        *(changes, "_drop_from", "reruns[name] = reruns.get(name, 0) + 1", "pass"),
        undone.test_a_retry_from_a_step_gives_its_events_back_and_new_keys,
    ),
    Bug(
        *(changes, "_reopen", " and name == row.failed_step", ""),
        stepping.test_a_step_fails_as_often_as_it_may_and_the_code_goes_another_way,
    ),
    Bug(
        *(events, "last_ids", "[-most:]", ""),
        undone.test_a_retry_is_made_once_for_its_request,
    ),
    Bug(
        *(pending, "get", "if key not in rows.by_key:", "if True:"),
        callers.test_changes_of_one_transaction_follow_each_other,
        errors=(UnknownFlowError,),
    ),
)

LEASES = (
    Bug(
        *(Attempt, "open", " or self.row.state not in (RUNNING, UNDOING)", ""),
        moments.test_a_delivery_of_a_flow_that_has_ended_changes_nothing,
    ),
    Bug(
        *(Attempt, "open", "check_silent(self.clients, self.row)", "pass"),
        takeover.test_a_delivery_waits_for_the_lease_of_a_living_one,
    ),
    Bug(
        *(attempt, "check_silent", " <= LEASE + datetime.timedelta(seconds=CLOCK_SKEW_S)", ""),
        takeover.test_a_delivery_waits_for_the_lease_of_a_living_one,
        errors=(LeasedError,),
    ),
    Bug(
        *(attempt, "check_silent", " or clients.processes.is_dead(row.owner)", ""),
        moments.test_the_lease_of_a_dead_process_is_taken_at_once,
        errors=(LeasedError,),
    ),
    Bug(
        *(
            Attempt,
            "_take",
            "row is None or row.state not",
            "row is None:\n        return self.row\n    if row.state not",
        ),
        takeover.test_a_delivery_whose_flow_was_deleted_ends,
    ),
    Bug(
        *(Attempt, "_take", "row.generation != self._generation", "False"),
        takeover.test_a_delivery_from_before_a_retry_changes_nothing,
        errors=(LeasedError,),
    ),
    Bug(
        *(Attempt, "_take", "check_silent(self.clients, row)", "pass"),
        moments.test_a_delivery_that_has_read_the_flow_before_waits_for_the_lease_of_another,
    ),
    Bug(
        *(Attempt, "_take", "row.owner != self._owner and self._holds", "False"),
        takeover.test_a_late_failure_does_not_undo_the_outcome_of_the_delivery_that_took_over,
        errors=(Suspended,),
    ),
    Bug(
        *(Attempt, "_find_write", "is_there and self.row.written_by in decisions", "False"),
        takeover.test_a_wait_whose_reply_is_lost_is_a_wait,
        errors=(LeasedError,),
    ),
    Bug(
        *(Attempt, "_find_write", "self.row.generation != self._generation", "False"),
        moments.test_a_write_whose_reply_is_lost_is_none_of_a_flow_that_was_retried_since,
    ),
    Bug(
        *(Attempt, "check_parked", "elif row.due == due:", "elif False:"),
        stepping.test_a_delivery_for_nothing_costs_no_write,
    ),
    Bug(
        *(Attempt, "running", "if self.stopped is not None:", "if False:"),
        stepping.test_an_except_of_the_code_takes_no_wait_for_an_outcome,
    ),
    Bug(
        *(Attempt, "running", "except Exception as error:", "except ZeroDivisionError as error:"),
        stepping.test_an_error_of_datastore_is_no_outcome_of_a_step,
    ),
    Bug(
        *(delivery, "_called", "if attempt.stopped is None:", "if True:"),
        stepping.test_a_delivery_that_waits_is_over_whatever_the_code_makes_of_it,
        {"ends": "raises"},
    ),
    Bug(
        *(delivery, "_called", "(stopped := attempt.stopped) is None", "(stopped := None) is None"),
        stepping.test_a_delivery_that_waits_is_over_whatever_the_code_makes_of_it,
        {"ends": "returns"},
    ),
    Bug(
        *(delivery, "_finish", "if row.state == UNDOING:", "if False:"),
        undone.test_a_change_during_the_last_write_is_not_lost,
        {"act": probe.cancel},
    ),
    Bug(
        *(delivery, "_fail", "row.state == UNDOING and not was_undoing", "False"),
        moments.test_a_mistake_of_a_flow_that_was_cancelled_just_before_does_not_fail_it,
    ),
    Bug(
        *(delivery, "_check_met", "unmet := undos.unknown()", "unmet := []"),
        versions.test_a_cancelled_flow_whose_code_has_dropped_a_call_waits_for_a_person,
        {"has_failed": False},
    ),
    Bug(
        *(delivery, "give_up", "check_silent(clients, row)", "pass"),
        moments.test_a_task_that_is_given_up_fails_no_flow_at_work,
    ),
    Bug(
        *(delivery, "give_up", "if row.state in (RUNNING, UNDOING)", "if True"),
        moments.test_a_task_that_is_given_up_fails_no_flow_at_work,
    ),
    Bug(
        *(delivery, "give_up", """args.run not in ("", row.run)""", "False"),
        late.test_a_task_of_an_earlier_run_fails_no_later_one_of_its_name,
    ),
)

STEPS = (
    Bug(
        *(calls, "_call", "if record.has_ended:", "if False:"),
        moments.test_a_step_that_another_delivery_has_ended_is_not_made,
        {"kind": "outside"},
    ),
    Bug(
        *(calls, "_claim", "_check_can_start(row, call)", "pass"),
        moments.test_a_step_does_not_begin_in_a_flow_that_was_cancelled_just_before,
        {"kind": "outside"},
    ),
    Bug(
        *(calls, "_commit", "        _check_wanted(row, call)\n", ""),
        moments.test_a_step_does_not_begin_in_a_flow_that_was_cancelled_just_before,
        {"kind": "commit"},
    ),
    Bug(
        *(calls, "_failed", ", is_called=False)", ")"),
        moments.test_a_step_that_pauses_is_not_called_by_a_delivery_for_nothing,
    ),
    Bug(
        *(records.StepRecord, "called", "self.doubts + died", "self.doubts"),
        stepping.test_a_call_that_lost_its_result_is_made_again_and_counted,
    ),
    Bug(
        *(records.StepRecord, "called", "self.attempts + died", "self.attempts"),
        failing.test_a_call_whose_worker_dies_each_time_is_given_up,
    ),
    Bug(
        *(calls, "_commit", "if committed is not None and committed.has_ended:", "if False:"),
        moments.test_a_step_that_another_delivery_has_ended_is_not_made,
        {"kind": "commit"},
    ),
    Bug(
        *(calls, "_failed", "if ended is not None and ended.has_ended:", "if False:"),
        stepping.test_an_overlapping_delivery_that_fails_does_not_undo_the_commit,
    ),
    Bug(
        *(calls, "_failed", "if isinstance(error, Reject):", "if False:"),
        undone.test_a_step_that_rejects_is_called_once,
    ),
    Bug(
        *(calls, "_failed", " or (attempt.is_undoing and not call.is_undo)", ""),
        failing.test_a_cancelled_flow_asks_a_service_that_is_down_a_few_times_more,
    ),
    Bug(
        *(calls, "make", "record.until > attempt.now_s()", "False"),
        clocks.test_a_flow_whose_time_has_come_for_the_queue_alone_is_not_woken_in_a_loop,
        {"code": clocks.pause},
    ),
    Bug(
        *(calls, "make", "values.check(call.function)", "pass"),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(entities.FlowRun, "check_capacity", "size > MAX_STEPS_BYTES", "False"),
        bad_input.test_a_flow_that_has_outgrown_its_row_fails_and_is_undone,
    ),
    Bug(
        *(entities.FlowRun, "has_capacity_for", "len(value) <= ROOMY_BYTES and ", "True or "),
        limits.test_large_results_are_in_the_row_as_long_as_it_has_room,
        {"kind": "outside"},
    ),
    Bug(
        *(names.StepNames, "use", "if name in self._used:", "if False:"),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(names.StepNames, "use", "len(self._used) >= MAX_STEPS", "False"),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(steps, "_check_outermost", "is_in_transaction() or ", ""),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(steps, "_check_outermost", " or attempt.is_calling", ""),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(steps.Steps, "_record", "record is not None and record.kind != kind", "False"),
        versions.test_a_version_that_does_not_read_a_step_leaves_it_to_the_other,
    ),
    Bug(
        *(steps.Steps, "_record", "is_begun or is_over()", "is_over()"),
        undone.test_a_call_in_doubt_is_made_to_its_end_and_then_undone,
        {"kind": "crash-before", "dies_over": "b"},
    ),
    Bug(
        *(calls, "make", "attempt.now_s() - attempt.began_s > MAX_DELIVERY_S", "False"),
        moments.test_a_long_delivery_goes_on_in_another_one,
        {"is_undone": True},
    ),
    Bug(
        *(undoing.Undos, "unknown", "record.doubts if record.state == FAILED else ", ""),
        failing.test_a_call_that_failed_in_doubt_is_taken_for_undone_by_nobody,
    ),
    Bug(
        *(undoing.Undos, "run", "waits.cancel_batches(self._attempt, self._batch)", "pass"),
        undone.test_the_batch_of_a_cancelled_flow_is_cancelled,
        {"is_gone": False},
    ),
    Bug(
        *(values, "joined", "if None in rows:", "if False:"),
        moments.test_a_large_result_whose_rows_were_deleted_fails_its_flow,
    ),
    Bug(
        *(values, "_checked", "size > MAX_VALUE_BYTES", "False"),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(policy.RetryPolicy, "is_over", "failures >= self.attempts", "failures > self.attempts"),
        failing.test_a_step_has_ten_attempts_over_a_quarter_of_an_hour,
    ),
)

WAITS = (
    Bug(
        *(waits, "check_running", "if row.state == UNDOING:", "if False:"),
        waiting.test_a_wait_does_not_begin_in_a_flow_that_was_cancelled,
        {"wait": "sleep"},
    ),
    Bug(
        *(
            waits,
            "is_over",
            "max(attempt.now_s(), *(other.began for other in others))",
            "attempt.now_s()",
        ),
        moments.test_a_sleep_that_is_over_is_over_for_a_clock_that_is_behind,
    ),
    Bug(
        *(waits, "is_over", "[list(records).index(name) :]", ""),
        clocks.test_a_sleep_is_not_cut_short_by_a_step_that_a_fast_clock_has_begun,
    ),
    Bug(
        *(Attempt, "check_parked", "if row.due == due and early", "if False and early"),
        clocks.test_a_flow_whose_time_has_come_for_the_queue_alone_is_not_woken_in_a_loop,
        {"code": clocks.sleep},
    ),
    Bug(
        *(waits, "check_ahead", "not -MAX_AHEAD_S <= wait_s <= MAX_AHEAD_S", "False"),
        bad_input.test_a_mistake_of_the_code_fails_the_flow,
    ),
    Bug(
        *(waits, "note_batch", " or record.batch != args.batch_id", ""),
        moments.test_the_end_of_another_batch_is_no_end_of_a_flows_batch,
    ),
    Bug(
        *(waits, "note_batch", "record.batch != args.batch_id", "record.batch > args.batch_id"),
        moments.test_the_end_of_another_batch_is_no_end_of_a_flows_batch,
    ),
    Bug(
        *(waits, "note_batch", " or record.has_ended", ""),
        moments.test_the_end_of_another_batch_is_no_end_of_a_flows_batch,
    ),
    Bug(
        *(waits, "wait_for_batch", "(ClosedError, DifferentWorkError)", "ClosedError"),
        moments.test_a_batch_has_the_members_that_it_was_started_with,
    ),
    Bug(
        *(waits, "_batch_id", ", row.generation", ""),
        moments.test_a_batch_that_is_retried_runs_again,
    ),
    Bug(
        *(sweep, "_reschedule", " and row.due <= now_utc", ""),
        moments.test_the_sweep_leaves_a_flow_that_is_due_no_more,
    ),
    Bug(
        *(sweep, "_reschedule", "row.sweeps += 1", "pass"),
        waiting.test_the_sweep_does_not_flood_a_slow_queue,
    ),
    Bug(
        *(sweep, "_remove", " or row.expires is None or row.expires >= end", ""),
        moments.test_a_flow_that_is_retried_after_its_time_is_not_deleted,
    ),
    Bug(
        *(entities, "due_by", "due > EPOCH, ", ""),
        moments.test_flows_that_sleep_cost_an_hour_of_sweeps_nothing,
    ),
)

BUGS = (*CHANGES, *LEASES, *STEPS, *WAITS)


@one_emulator
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    """W2 to W20: each guard of a change, a delivery, a step and a wait is for something."""
    bug.check_noticed(monkeypatch, world=world)


@one_emulator
def test_another_number_of_attempts_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: as the default."""
    _, *others = policy.RetryPolicy.__init__.__defaults__ or ()
    monkeypatch.setattr(policy.RetryPolicy.__init__, "__defaults__", (9, *others))
    with pytest.raises(AssertionError):
        failing.test_a_step_has_ten_attempts_over_a_quarter_of_an_hour(world)
