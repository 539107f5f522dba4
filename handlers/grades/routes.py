"""Pages of students by grade: the roster, the pending changes, and their bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer

from handlers.grades.charts import Chip, bars, class_sizes, is_catching_up
from handlers.grades.stage import SchoolStage, costs
from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import (
    ID_PATTERN,
    MAX_PASTED_CHARS,
    about_file,
    id_in_form,
    uploaded_list,
)
from handlers.shared.live import live_part
from handlers.shared.quotas import COUNTED_PER_S, SCHOOLS, let_in
from handlers.shared.source_excerpts import Excerpt, excerpt
from models.grades import School, Student, Teacher, school_key, student_key, teachers_of
from pipelines.grades import comparison, imports, students, verification
from pipelines.grades.comparison import SAMPLES
from pipelines.grades.imports import ListGoingOnError
from pipelines.grades.student_lists import GRADES_TAUGHT, BadStudentError, details_of
from pipelines.grades.students import DEMO, TooManyTeachersError, UnknownStudentError
from pipelines.grades.views import (
    BUILDS,
    GRADES,
    VISIBLE_VIEWS,
    ClassSizes,
    StudentsByGrade,
    view_of,
)
from rollforward.continuations.csv_source import MAX_BYTES, BadFileError
from rollforward.continuations.entities import RUNNING
from rollforward.continuations.errors import OtherJobError
from rollforward.continuations.progress import ItemIssue, RunProgress, item_issues, progress
from rollforward.flask.context import clients, settings
from rollforward.flask.guards.fields import limits
from rollforward.materialized_views import (
    BuildStatus,
    ConsistencyToken,
    Verification,
)

bp = Blueprint("grades", __name__, url_prefix="/grades")

STUDENTS_SHOWN = 8
LISTS_SHOWN = 3
CHIPS_SHOWN = 6
CHANGES_READ = 50
ISSUES_SHOWN = 100
MADE_UP = 1000
# How long a page waits for its visitor's own change.
WAIT_S = 0.3
# The Datastore emulator ran out of 6 GB of memory between 50,000 and 60,000 students.
MAX_IN_EMULATOR = 30_000
# With fewer students than this, counting them may be as fast as reading a view.
PAYS_FROM = 1000
TABS = ("chart", "roster", "compare")
MORE = ("how", "code", "table", "teachers")
FILLED_IN = {"name": "佐藤 花子", "grade": "7", "points": "92"}
FIELDS = ("name", "grade", "points")
EXAMPLE = "佐藤 花子, 7, 92"
SENT_BEFORE = "This form was sent before with other values. Reload the page and try again."
LIST_GOES_ON = "another list is being added; try again when it has ended"


@bp.get("")
@limits(seen=4_000)
def page() -> ResponseReturnValue:
    """Show a school: its chart, its roster, or what counting would cost instead."""
    return _page({}, {}, 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    if request.args.get("tab") == "compare":
        return live_part("grades/_compare_live.html", **_compared())
    return live_part("grades/_live.html", made_up=MADE_UP, **_live(_school_or_404()))


# One student, one teacher


@bp.post("/students")
@limits(name=1_000)
def add() -> ResponseReturnValue:
    """Add a student, once for each form."""
    form_id = id_in_form()
    form = _fields()
    try:
        details = details_of(**form)
    except BadStudentError as error:
        return _page(form, dict(error.errors), 400)
    return _saved(
        f"{details.name} was added to grade {details.grade}",
        lambda: students.add_student(clients(), DEMO, form_id, details),
        student_id=form_id,
    )


@bp.post("/students/<student_id>/<any(change, delete):verb>")
@limits(name=1_000)
def change(student_id: str, verb: str) -> ResponseReturnValue:
    """Give a student other details, another grade perhaps, or delete them."""
    if not ID_PATTERN.fullmatch(student_id):
        abort(404)
    try:
        if verb == "delete":
            return _saved(
                "A student was deleted",
                lambda: students.delete_student(clients(), DEMO, student_id),
            )
        details = details_of(**_fields())
        return _saved(
            f"{details.name} was saved, in grade {details.grade}",
            lambda: students.change_student(clients(), DEMO, student_id, details),
            student_id=student_id,
        )
    except BadStudentError as error:
        student = student_key(DEMO, student_id).get() or abort(404)
        return _page({}, {"roster": f"{student.name} was not saved: {error}"}, 400)
    except UnknownStudentError:
        abort(404)


@bp.post("/teachers")
def add_teacher() -> ResponseReturnValue:
    """Add a made-up teacher to a grade, once for each form."""
    form_id, grade = id_in_form(), request.form.get("grade", 0, type=int)
    if grade not in GRADES_TAUGHT:
        abort(400, f"grade must be a whole number from {GRADES_TAUGHT[0]} to {GRADES_TAUGHT[-1]}.")
    try:
        return _saved(
            f"A teacher was added to grade {grade}",
            lambda: students.add_teacher(clients(), DEMO, form_id, grade),
        )
    except TooManyTeachersError:
        flash(f"A school has at most {students.MAX_TEACHERS} teachers: remove one first.")
        return _back()


@bp.post("/teachers/<teacher_id>/delete")
def delete_teacher(teacher_id: str) -> ResponseReturnValue:
    """Delete a teacher."""
    if not ID_PATTERN.fullmatch(teacher_id):
        abort(404)
    return _saved(
        "A teacher was removed", lambda: students.delete_teacher(clients(), DEMO, teacher_id)
    )


def _saved(
    message: str, save: Callable[[], ConsistencyToken], *, student_id: str = ""
) -> ResponseReturnValue:
    """Save, keep the cost, and redirect to a page that shows at least this save."""
    cost_before, started = clients().meter.cost(), time.perf_counter()
    token = save()
    took_s = time.perf_counter() - started
    cost = clients().meter.cost() - cost_before
    if not cost.writes:
        flash("Nothing changed: this was done before.")
        return _back()
    session["saved"] = {
        "message": message,
        "took_s": round(took_s, 4),
        "reads": cost.reads,
        "writes": cost.writes,
        "tasks": len(token.updates),
        "student_id": student_id,
    }
    return _back(token)


# Lists


@bp.post("/lists")
@limits(pasted=MAX_PASTED_CHARS)
def upload() -> ResponseReturnValue:
    """Take a file of students, or text pasted into the form, and start to add them."""
    form_id = id_in_form()
    content, name = uploaded_list()
    strike_once_each(request.path)
    try:
        imports.import_students(clients(), DEMO, form_id, content, name)
    except BadFileError as error:
        return _page({}, {"list": about_file(name, str(error), EXAMPLE)}, 400)
    except ListGoingOnError:
        return _page({}, {"list": LIST_GOES_ON}, 409)
    return _back()


@bp.post("/made-up")
def make_up() -> ResponseReturnValue:
    """Add made-up students: a continuation, a hundred in each commit."""
    strike_once_each(request.path)
    try:
        imports.add_many(clients(), DEMO, id_in_form(), MADE_UP)
    except ListGoingOnError:
        return _page({}, {"list": LIST_GOES_ON}, 409)
    except OtherJobError:
        return _page(
            {},
            {"list": SENT_BEFORE},
            400,
        )
    return _back()


# Rebuild, verify, compare


@bp.post("/<any(rebuild, verify):verb>")
def check(verb: str) -> ResponseReturnValue:
    """Rebuild the view while pages read the old one, or compare it with its sources."""
    form_id = id_in_form()
    if verb == "verify":
        verification.verify(clients(), DEMO, form_id)
    else:
        BUILDS.rebuild(clients(), StudentsByGrade)
    return _back()


@bp.post("/compare/<school>")
def compare(school: str) -> ResponseReturnValue:
    """Measure what counting a sample school costs; fill it first, if it is empty."""
    if school not in _samples():
        abort(404)
    form_id, count = id_in_form(), SAMPLES[school]
    let_in(SCHOOLS, form_id, count, count / COUNTED_PER_S)
    comparison.compare(clients(), school, form_id)
    return redirect(url_for(".page", tab="compare", _anchor="compare"), 303)


def _samples() -> Sequence[str]:
    """Return the sample schools, first those for which a view pays."""
    limit = MAX_IN_EMULATOR if settings().is_local else max(SAMPLES.values())
    schools = [school for school, size in SAMPLES.items() if size <= limit]
    return sorted(schools, key=lambda school: SAMPLES[school] < PAYS_FROM)


# What the page is made of


def _page(form: dict[str, str], errors: dict[str, str], status: int) -> ResponseReturnValue:
    school = _school_or_404()
    tab, section = _tabs(errors)
    if school != DEMO and tab != TABS[0]:
        abort(404)  # A sample school has a chart alone.
    # Before the roster and all else: then everything on the page is at least as new.
    is_satisfied = GRADES.wait(clients(), _token_in_address(), WAIT_S)
    roster, more_students = _roster() if tab == "roster" else ([], None)
    shown = _compared() if tab == "compare" else _live(school)
    html = render_template(
        "grades/page.html",
        form=form or FILLED_IN,
        errors=errors,
        tab=tab,
        more=section,
        excerpts=_code() if section == "code" else [],
        students=roster,
        more_students=more_students,
        taught=GRADES_TAUGHT,
        made_up=MADE_UP,
        max_mib=MAX_BYTES // 2**20,
        is_satisfied=is_satisfied,
        **shown,
    )
    return html, status


def _tabs(errors: Mapping[str, str]) -> tuple[str, str]:
    """Return the open tab, and the open section below the chart."""
    if request.method != "GET":
        return "roster" if "roster" in errors else "chart", MORE[0]
    tab = request.args.get("tab", "roster" if "after" in request.args else TABS[0])
    section = request.args.get("more", MORE[0])
    if tab not in TABS or section not in MORE:
        abort(404)
    return tab, section


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.grades.views", "StudentsByGrade", "A student’s share of each bar"),
        excerpt("pipelines.grades.students", "add_student", "Saves a student and updates the bar"),
    ]


def _roster() -> tuple[list[Student], str | None]:
    """Return a page of the demo's students, the last saved one first."""
    after_id = request.args.get("after", "") if request.method == "GET" else ""
    if after_id and not ID_PATTERN.fullmatch(after_id):
        abort(400, "This page of students does not exist.")
    roster, next_id = students.students_page(DEMO, after=after_id, size=STUDENTS_SHOWN)
    saved_id = session.get("saved", {}).get("student_id")
    if saved_id and not after_id:
        saved_student = student_key(DEMO, saved_id).get()
        others_listed = [student for student in roster if student.student_id != saved_id]
        roster = [*([saved_student] if saved_student else []), *others_listed]
    return roster, next_id


def _live(school: str) -> dict[str, Any]:
    # Lists are read first: each student said to be added is in a bar, or on the way to it.
    lists = _lists(school_key(school).get() or School())
    cost_before = clients().meter.cost()
    reading = GRADES.read(clients(), view_of(school), prefix=(school,))
    read = clients().meter.cost() - cost_before
    chips = _chips(school) if reading.freshness.waiting else []
    classes = GRADES.read(clients(), ClassSizes, prefix=(school,))
    teachers: list[Teacher] = teachers_of(school).fetch(students.MAX_TEACHERS)
    builds = _builds()
    verified = verification.verification(clients(), school)
    count = sum(row.count for row in reading.rows)
    saved = session.get("saved") if school == DEMO else None
    latest = lists[0][1] if lists else None
    cost = costs(read, count, saved)
    waiting = reading.freshness.waiting
    return {
        "school": school,
        "is_demo": school == DEMO,
        "new_id": clients().new_id(),
        "reading": reading,
        "read": read,
        "bars": bars(reading, chips),
        "count": count,
        "chips": chips[:CHIPS_SHOWN],
        "classes": class_sizes(classes, teachers),
        "lists": lists,
        "builds": builds,
        "verification": verified,
        "table": GRADES.catalog().live(view_of(school)),
        "saved": saved,
        "stage": render(SchoolStage(latest, waiting, verified, cost), clients().clock.now()),
        "is_moving": any(is_catching_up(view) for view in (reading, classes))
        or _is_busy(lists, builds, verified),
    }


def _compared() -> dict[str, Any]:
    statuses = comparison.statuses(clients(), _samples())
    return {
        "school": DEMO,
        "is_demo": True,
        "new_id": clients().new_id(),
        "compared": statuses,
        "is_moving": any(status.state in ("filling", "measuring") for status in statuses),
    }


def _chips(school: str) -> list[Chip]:
    waiting = GRADES.waiting(clients(), view_of(school), prefix=(school,), limit=CHANGES_READ)
    return [Chip.of(update, age_s) for update, age_s in waiting]


def _is_busy(
    lists: Sequence[tuple[str, RunProgress, list[ItemIssue]]],
    builds: Sequence[BuildStatus],
    verified: Verification | None,
) -> bool:
    return (
        any(run.state == RUNNING for _, run, _ in lists)
        or any(not build.has_stopped for build in builds)
        or (verified is not None and verified.state == RUNNING)
    )


def _lists(school: School) -> list[tuple[str, RunProgress, list[ItemIssue]]]:
    """Return the school's last lists, newest first, and the newest one's issues."""
    now = clients().clock.now()
    listed = []
    for place, entry in enumerate(reversed(school.lists[-LISTS_SHOWN:])):
        run = progress(entry["run_id"], now=now, dots=False, clients=clients())
        wrong = place == 0 and run.totals.failed + run.totals.retrying
        rows = _issues(run) if wrong else []
        listed.append((entry["name"], run, rows))
    return listed


def _issues(run: RunProgress) -> list[ItemIssue]:
    return item_issues(run.run_id, limit=ISSUES_SHOWN, clients=clients())


def _builds() -> list[BuildStatus]:
    """Return the builds that run, have failed or were cancelled."""
    rebuilds = [BUILDS.rebuilding(clients(), view) for view in VISIBLE_VIEWS]
    return [build for build in rebuilds if build is not None]


# What addresses and forms hold


def _school_or_404() -> str:
    school = request.args.get("school", DEMO) if request.method == "GET" else DEMO
    if school not in (DEMO, *SAMPLES):
        abort(404)
    return school


def _signer() -> URLSafeSerializer:
    """Return the signer of tokens in addresses, so that visitors cannot forge them."""
    return URLSafeSerializer(list(reversed(settings().secret_keys)), salt="grades.seen")


def _token_in_address() -> ConsistencyToken:
    sealed = request.args.get("seen", "") if request.method == "GET" else ""
    try:
        return ConsistencyToken.parse(_signer().loads(sealed)) if sealed else ConsistencyToken()
    except BadSignature:
        abort(400, "This address is cut off, or was changed. Open the page from the menu.")


def _back(token: ConsistencyToken | None = None) -> ResponseReturnValue:
    """Redirect to the page; with a token, to one that is at least as new as the token."""
    seen = _signer().dumps(str(token)) if token and str(token) else None
    form_after = request.form.get("after", "")
    after_id = form_after if ID_PATTERN.fullmatch(form_after) else None
    tab = "roster" if after_id or request.form.get("tab") == "roster" else None
    section = "teachers" if request.form.get("more") == "teachers" else None
    anchor = "tabs" if section else tab or "now"
    return redirect(
        url_for(".page", seen=seen, after=after_id, tab=tab, more=section, _anchor=anchor), 303
    )


def _fields() -> dict[str, str]:
    return {field: request.form.get(field, "").strip() for field in FIELDS}
