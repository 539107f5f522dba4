"""Runs of all patterns: a list, and one with its items or steps, numbers and verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api import changes
from rollforward.console.api.changes import NO_RUN, ChangeRefusedError
from rollforward.console.api.queries import LIST_RUNS, SORTED_RUNS, list_query, number_of
from rollforward.console.api.rows import item_words
from rollforward.console.pages import run_pictures
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry, settings
from rollforward.flask.guards.fields import limits
from rollforward.lanes.rows.entities import unquote
from rollforward.look import words
from rollforward.look.lists import ListChoice
from rollforward.operations.run_sources import PATTERN as APP_RUNS
from rollforward.tasks.pattern import Pattern, SteppedPattern
from rollforward.tasks.runs import STATES, Run, RunDetails, RunLink, UnknownRunError

SHOWN_PARTS = 50
SHOWN_RUNS = 5
SHOWN_REASON_CHARS = 200
VERB_WORDS = {
    "cancel": "Cancel",
    "resume": "Resume",
    "retry": "Retry the failed items",
    "rebuild": "Rebuild",
}
STEP_VERB_WORDS = {"cancel": "Cancel and undo", "retry": "Retry"}
UNDOES = "The undo steps that it declared run now. It cannot be resumed."
COMPLETES = "Its members that wait do not run, and its callback does, now."
ENDED = ("done", "skipped", "failed")
# What is unknown comes last.
SORTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "oldest": lambda run: run["started"] or float("inf"),
    "longest": lambda run: -(run["elapsed_s"] or 0.0),
    "most failed": lambda run: -run["counts"].get("failed", 0),
}
# Lists that people look at first; an address of one's own is as good.
VIEWS = {
    "Running, longest first": "/runs?state=running&sort=longest",
    "Failed, in the last 24 hours": "/runs?state=failed&age=24h",
    "Failed flows": "/runs?pattern=flows&state=failed",
    "Batches, most failed first": "/runs?pattern=batches&sort=most+failed",
    "Builds of views": "/runs?pattern=materialized-views",
    "Loads and playbacks of the app": "/runs?pattern=app",
    "Pipelines of streams": "/runs?pattern=streams",
    "Started in the last 5 minutes": "/runs?age=5m",
}
NO_STEP = "This run cannot be retried from such a step as it is now."


@page
def runs() -> ResponseReturnValue:
    """Show runs, the newest first or in another order, and the parts that have no end."""
    names = ("pattern", "state", "name")
    choice = {key: request.args.get(key, "").strip() for key in names}
    chosen, now_utc = ListChoice.of(request.args, SORTS), clients().clock.now()
    started_before, patterns = request.args.get("before", "").strip(), patterns_with_runs()
    parts = [part for part in registry().named_parts() if choice["pattern"] in ("", part.pattern)]
    all_patterns = sorted({*patterns, *_patterns_with_named_parts()})
    limit = SORTED_RUNS if chosen.sort and choice["pattern"] else LIST_RUNS
    asked = {**choice, "before": started_before}
    query = list_query(asked, all_patterns, chosen.bounds(now_utc), limit)
    listed = registry().runs(clients(), query)
    rows = [_to_values(run) for run in listed.runs]
    if chosen.sort:
        rows.sort(key=SORTS[chosen.sort])
    fields = {**choice, **chosen.fields}
    older = ""
    if listed.next_before:
        older = with_query("/runs", **fields, before=listed.next_before.isoformat())
    is_filtered = any(fields.values())
    is_about_runs = choice["state"] or choice["name"] or chosen.fields or started_before
    return render(
        "runs.html",
        rows=rows,
        parts=parts if not is_about_runs else (),
        choice=choice,
        chosen=chosen,
        sorts=SORTS,
        views=VIEWS,
        sorted_count=len(rows) if chosen.sort and (older or started_before) else 0,
        has_runs=choice["pattern"] in ("", *patterns),
        patterns=all_patterns,
        states=STATES,
        is_filtered=is_filtered,
        older=older,
        is_first=not started_before,
        first=with_query("/runs", **fields),
        word_of=_verb_word,
        consequence_of=_consequence,
        retry_alls=_retry_alls(choice, listed.runs),
        key=clients().new_id(),
    )


@page
def run(pattern: str, run_id: str) -> ResponseReturnValue:
    """Show one run; a lane has pages of its own."""
    if pattern == "lanes":
        lane, _, key = run_id.partition("|")
        if key:
            return go_to("/lanes/key", "", lane=lane, key=unquote(key))
        return go_to(f"/lanes/of/{quote(lane, safe='')}")
    details = _details(pattern, run_id)
    now_s = clients().clock.now().timestamp()
    return render(
        "run.html",
        details=details,
        run=_to_values(details.run),
        args=words.body(details.run.args.encode()),
        result=words.body(details.result.encode()) if details.result else None,
        parts=details.parts[:SHOWN_PARTS],
        part_count=len(details.parts),
        columns=_columns(details),
        dots=run_pictures.dots_of(details),
        curve=run_pictures.curve_of(details, now_s),
        lanes=run_pictures.lanes_of(details, now_s),
        attempts_url=_attempts_url(pattern, run_id),
        word_of=_verb_word,
        consequence_of=_consequence,
        retry_url=partial(_retry_url, pattern, run_id),
        item_words=item_words,
        tree=[{**vars(branch), "run": _to_values(branch.run)} for branch in details.tree],
        feeding=_sources_of(pattern, run_id),
        has_steps=_has_steps(pattern),
        key=clients().new_id(),
    )


@page
@limits(id=changes.MAX_ID_BYTES)
def confirm_retry() -> ResponseReturnValue:
    """Say which steps a retry runs again, and ask."""
    names = ("pattern", "id", "step")
    pattern, run_id, step = (request.args.get(name, "") for name in names)
    details = _details(pattern, run_id)
    if step not in details.starts:
        raise ChangeRefusedError(409, NO_STEP)
    again = details.starts[details.starts.index(step) :]
    return render(
        "retry.html",
        run=_to_values(details.run),
        step=step,
        runs=details.numbers.get("runs", 0),
        again=again,
        columns=_columns(details),
        rows=[row for row in details.rows if next(iter(row.values())) in again],
    )


@page
def confirm_retry_all() -> ResponseReturnValue:
    """Count the failed runs that a retry of all would take, and ask."""
    pattern, name = (request.args.get(field, "").strip() for field in ("pattern", "name"))
    if not _has_steps(pattern):
        raise ChangeRefusedError(404, changes.NO_FAILED_RUNS)
    query = list_query({"pattern": pattern, "state": "failed", "name": name}, patterns_with_runs())
    listed = registry().runs(clients(), query)
    return render(
        "runs_confirm.html",
        pattern=pattern,
        name=name,
        count=len(listed.runs),
        is_cut=listed.next_before is not None,
        rows=[_to_values(run) for run in listed.runs[:SHOWN_RUNS]],
        key=clients().new_id(),
        back=with_query("/runs", pattern=pattern, state="failed", name=name),
    )


@page
def retry_all() -> ResponseReturnValue:
    """Start a run that retries all failed runs of a pattern, or of one name."""
    pattern, name, key = (request.form.get(field, "") for field in ("pattern", "name", "key"))
    run_id = changes.retry_failed_runs(pattern, name, (), key or None)
    return go_to(f"/runs/continuations/{run_id}", "failed-runs")


@page
@limits(id=changes.MAX_ID_BYTES)
def change_run() -> ResponseReturnValue:
    """Cancel, resume or retry a run."""
    form = request.form
    pattern, run_id, verb = (form.get(name, "") for name in ("pattern", "id", "verb"))
    step, runs = form.get("step", ""), int(number_of(form.get("runs", "0"), "runs"))
    next_id = changes.control_run(
        *(pattern, run_id, verb),
        from_step=step,
        runs=runs,
        idempotency_key=form.get("key") or None,
    )
    path = f"/runs/{quote(pattern, safe='')}/{quote(next_id, safe='')}"
    return go_to(path, _notice(pattern, verb))


def _notice(pattern: str, verb: str) -> str:
    """Return the key of the notice after a change."""
    if _has_steps(pattern):
        return f"step-{verb}"
    return "batch-cancel" if (pattern, verb) == ("batches", "cancel") else verb


def _details(pattern: str, run_id: str) -> RunDetails:
    if len(run_id.encode(errors="replace")) > changes.MAX_ID_BYTES:
        raise ChangeRefusedError(404, NO_RUN)
    try:
        return registry().run(clients(), pattern, run_id)
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_RUN) from None


def _sources_of(pattern: str, run_id: str) -> list[tuple[str, str]]:
    """Return the kinds of the app's own runs that feed a part, and where they are listed."""
    sources = registry().parts(APP_RUNS) if APP_RUNS in registry().patterns else ()
    fed = RunLink(pattern, run_id)
    return [
        (source.name, with_query("/runs", pattern=APP_RUNS, name=source.name))
        for source in sources
        if source.feeds == fed
    ]


def _columns(details: RunDetails) -> list[str]:
    """Return the names of the columns of a run's table, in the order of the fullest rows."""
    return list(dict.fromkeys(name for row in details.rows for name in row))


def patterns_with_runs() -> list[str]:
    """Return the names of the patterns that list runs."""
    patterns = registry().patterns.items()
    return [name for name, pattern in patterns if type(pattern).runs is not Pattern.runs]


def _patterns_with_named_parts() -> list[str]:
    """Return the names of the patterns whose parts work without an end."""
    patterns = registry().patterns.items()
    return [
        name for name, pattern in patterns if type(pattern).part_names is not Pattern.part_names
    ]


def _has_steps(pattern: str) -> bool:
    return isinstance(registry().patterns.get(pattern), SteppedPattern)


def _verb_word(pattern: str, verb: str) -> str:
    """Return a verb on its button."""
    if _has_steps(pattern):
        return STEP_VERB_WORDS.get(verb, VERB_WORDS[verb])
    return VERB_WORDS[verb]


def _consequence(pattern: str, verb: str) -> str:
    """Return the consequence of a change that cannot be taken back; "": it can be."""
    if verb != "cancel":
        return ""
    return UNDOES if _has_steps(pattern) else COMPLETES if pattern == "batches" else ""


def _retry_alls(choice: Mapping[str, str], runs: Sequence[Run]) -> Mapping[str, str]:
    """Return where to retry all runs of a list of failed ones, by pattern."""
    if choice["state"] != "failed":
        return {}
    patterns = sorted({run.pattern for run in runs if "retry" in run.verbs})
    return {
        pattern: with_query("/runs/retry-all", pattern=pattern, name=choice["name"])
        for pattern in patterns
    }


def _retry_url(pattern: str, run_id: str, step: str) -> str:
    return with_query("/runs/retry", pattern=pattern, id=run_id, step=step)


def _attempts_url(pattern: str, run_id: str) -> str:
    """Return the local platform's page of the attempts of a run; "": there is no platform."""
    platform = settings().devserver_url
    return (
        f"{platform}/attempts/{quote(pattern, safe='')}/{quote(run_id, safe='')}"
        if platform
        else ""
    )


def _to_values(run: Run) -> dict[str, Any]:
    ended_items = sum(run.counts.get(name, 0) for name in ENDED)
    started = run.started.timestamp() if run.started else None
    ended = run.ended.timestamp() if run.ended else None
    now_s = clients().clock.now().timestamp()
    most = 0.99 if run.state == "running" and run.is_partial else 1.0
    is_timed = started is not None and (ended is not None or run.state in ("running", "failed"))
    return {
        **vars(run),
        "started": started,
        "ended": ended,
        "ended_items": ended_items,
        "share": min(most, ended_items / run.expected) if run.expected else 0.0,
        "waits_until": run.waits_until.timestamp() if run.waits_until else None,
        "short_reason": run.reason[:SHOWN_REASON_CHARS],
        "elapsed_s": max(0.0, (ended or now_s) - (started or 0.0)) if is_timed else None,
    }


ROUTES: Routes = (
    ("/runs", "GET", runs),
    ("/runs/retry", "GET", confirm_retry),
    ("/runs/change", "POST", change_run),
    ("/runs/retry-all", "GET", confirm_retry_all),
    ("/runs/retry-all", "POST", retry_all),
    ("/runs/<pattern>/<path:run_id>", "GET", run),
)
