"""Comparisons: cost of a school's chart, counted from its students or read from the view.

Each sample school is filled once, by the job that adds made-up students, and measured as soon
as it is full, or when a visitor asks. A measurement is a task: counting a hundred thousand
students takes longer than a visitor waits for a page.

Lost on failure: nothing. A measurement that breaks off starts again.

Routes: POST /tasks/continuations/fill-school, POST /tasks/grades/measure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import grpc
import pydantic
from google.cloud import ndb
from google.cloud.datastore_v1 import types as rpc

from models.grades import Comparison, SampleStudent, comparison_key, student_key, students_of
from pipelines.grades.imports import MadeUpArgs, add_made_up_students
from pipelines.grades.student_lists import GRADES_TAUGHT
from pipelines.grades.views import GRADES, SamplesByGrade, grade_of
from rollforward import continuations, outbox
from rollforward.continuations.entities import FINISHED, RUNNING, run_key
from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.progress import RunProgress, progress
from rollforward.continuations.sources import NumberSource, Slice, Span
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Retry, Unavailable, hashed_name, task

T = TypeVar("T")

# Schools to compare with, and how many students each has.
SAMPLES = {
    "sample-100": 100,
    "sample-10000": 10_000,
    "sample-30000": 30_000,
    "sample-100000": 100_000,
}
# A fill that runs ahead of its view slows every reader of it: updates of one bar would race each
# other. So there is one page at a time, and it waits until fewer updates than this are left.
FILL_CHAINS = 1
MAX_WAITING = 4
# A commit takes 500 entities: two per student, one per grade, and the page's row.
FILL_PAGE_SIZE = 200
ONE_BY_ONE, BY_AGGREGATION, FROM_VIEW = "one_by_one", "by_aggregation", "from_view"
STUDENTS_PER_PAGE = 1_000
# An aggregation costs one read for this number of index entries.
ENTRIES_PER_READ = 1_000
RECHECK_S = 1.0
MAX_RECHECKS = 300
QUERY_TIMEOUT_S = 60.0
# A single short reading is mostly noise. Counting one by one takes long enough.
REPETITIONS = {ONE_BY_ONE: 1, BY_AGGREGATION: 3, FROM_VIEW: 3}


@dataclass(frozen=True)
class Measure:
    """School to measure, id of the request, and number of rechecks of the view."""

    school: Annotated[str, pydantic.Field(min_length=1, max_length=64)]
    measure_id: Annotated[str, pydantic.Field(min_length=1, max_length=64)]
    rechecks: Annotated[int, pydantic.Field(ge=0, le=MAX_RECHECKS)] = 0


@dataclass(frozen=True)
class ComparisonStatus:
    """State of a school's comparison: "empty", "filling", "measuring" or "measured"."""

    school: str
    size: int
    state: str
    filled: RunProgress | None
    comparison: Comparison | None


def statuses(clients: Clients, schools: Sequence[str]) -> list[ComparisonStatus]:
    """Return the states of some schools' comparisons."""
    comparisons = ndb.get_multi([comparison_key(school) for school in schools])
    return [_status(clients, *row) for row in zip(schools, comparisons, strict=True)]


def _status(clients: Clients, school: str, comparison: Comparison | None) -> ComparisonStatus:
    try:
        filled = progress(_fill_id(school), now=clients.clock.now(), dots=False, clients=clients)
    except UnknownRunError:
        return ComparisonStatus(school, SAMPLES[school], "empty", None, None)
    if filled.state == RUNNING:
        state = "filling"
    elif comparison is None or comparison.asked != comparison.measured:
        state = "measuring"
    else:
        state = "measured"
    return ComparisonStatus(school, SAMPLES[school], state, filled, comparison)


def compare(clients: Clients, school: str, measure_id: str) -> None:
    """Measure a sample school, which is filled first; once for each measure_id."""
    run = run_key(_fill_id(school)).get()
    if run is None:
        args = MadeUpArgs(school, _fill_id(school), SAMPLES[school])
        continuations.start(
            clients,
            FILL_SCHOOL,
            args,
            run_id=args.list_id,
            expected=args.count,
            chains=FILL_CHAINS,
        )
    elif run.state == FINISHED:
        _ask(clients, school, measure_id)


def _fill_id(school: str) -> str:
    return hashed_name("fill-school", school)


def _ask(clients: Clients, school: str, measure_id: str) -> None:
    """Record the requested measurement, and enqueue it, in one commit."""

    def body() -> None:
        comparison = comparison_key(school).get() or Comparison(key=comparison_key(school))
        if measure_id not in (comparison.asked, comparison.measured):
            comparison.asked = measure_id
            comparison.put()
            outbox.enqueue(clients, measure, Measure(school, measure_id))

    transact(body)


def _filled(clients: Clients, args: MadeUpArgs) -> None:
    _ask(clients, args.school, args.list_id)


class _Paced(NumberSource):
    """Numbers of a fill; a page is read only while the view is not far behind."""

    def __init__(self, args: MadeUpArgs) -> None:
        super().__init__(args.count)
        self._school = args.school

    def read(self, span: Span, size: int) -> Slice[int]:
        if GRADES.is_waiting(SamplesByGrade, MAX_WAITING, prefix=(self._school,)):
            raise Retry(f"{self._school} has {MAX_WAITING} updates to apply first")
        return super().read(span, size)


FILL_SCHOOL = replace(
    add_made_up_students,
    name="fill-school",
    source=_Paced,
    on_finished=_filled,
    page_size=FILL_PAGE_SIZE,
)


@task("/tasks/grades/measure", queue="imports")
def measure(clients: Clients, args: Measure) -> None:
    """Count a school's students in each way, after its view has caught up."""
    comparison = comparison_key(args.school).get()
    if comparison is None or comparison.asked != args.measure_id:
        return
    if comparison.measured == args.measure_id:
        return
    is_behind = GRADES.is_waiting(SamplesByGrade, prefix=(args.school,))
    if is_behind and args.rechecks < MAX_RECHECKS:
        recheck = replace(args, rechecks=args.rechecks + 1)
        name = (args.school, args.measure_id, recheck.rechecks)
        measure.enqueue(clients, recheck, name=name, delay_s=RECHECK_S)
        return
    ways = _ways(clients, args.school)

    def keep() -> None:
        stored = comparison_key(args.school).get()
        if stored is not None and stored.asked == args.measure_id:
            stored.measured, stored.ways = args.measure_id, ways
            stored.at = naive_utc(clients.clock.now())
            stored.put()

    transact(keep)


# The ways to count

# {grade: (students, their points; None where a way does not count them)}
Counts = Mapping[int, tuple[int, int | None]]


def _ways(clients: Clients, school: str) -> dict[str, dict[str, float | bool] | None]:
    """Count in each way; None: the service does not offer it."""
    counters: dict[str, Callable[[], Counts | None]] = {
        ONE_BY_ONE: lambda: _one_by_one(school),
        BY_AGGREGATION: lambda: _by_aggregation(clients, school),
        FROM_VIEW: lambda: _from_view(clients, school),
    }
    truth: Counts = {}
    ways: dict[str, dict[str, float | bool] | None] = {}
    for way, count in counters.items():
        counts, bill = _measured(clients, count, REPETITIONS[way])
        truth = truth or counts or {}
        ways[way] = None if counts is None else {**bill, "agrees": _agree(truth, counts)}
        if way == BY_AGGREGATION and counts is not None:
            ways[way] = {**ways[way], "reads": _billed(counts)}  # type: ignore[dict-item]
    return ways


def _measured(clients: Clients, count: Callable[[], T], times: int) -> tuple[T, dict[str, float]]:
    """Count several times; return the last counts, and the median duration with the cost."""
    import statistics  # A measurement is seldom: fractions and decimals need not delay a start.

    took: list[float] = []
    for _ in range(times):
        cost_before, started = clients.meter.cost(), time.perf_counter()
        counts = count()
        took.append(time.perf_counter() - started)
        cost = clients.meter.cost() - cost_before
    bill = {"reads": cost.reads, "round_trips": cost.round_trips}
    return counts, {"took_s": round(statistics.median(took), 5), **bill}


def _agree(truth: Counts, counts: Counts) -> bool:
    """Return whether two ways agree, where both have a value."""
    return truth.keys() == counts.keys() and all(
        count == truth[grade][0] and points in (None, truth[grade][1])
        for grade, (count, points) in counts.items()
    )


def _one_by_one(school: str) -> Counts:
    """Read every student, a page at a time."""
    counts: dict[int, tuple[int, int | None]] = {}
    last_id = ""
    while True:
        page = students_of(school, after=last_id).fetch(STUDENTS_PER_PAGE)
        for student in page:
            count, points = counts.get(student.grade, (0, 0))
            counts[student.grade] = (count + 1, (points or 0) + student.points)
        if len(page) < STUDENTS_PER_PAGE:
            return counts
        last_id = page[-1].student_id


def _from_view(clients: Clients, school: str) -> Counts:
    """Read the view's rows, one per grade."""
    rows = GRADES.read(clients, SamplesByGrade, prefix=(school,)).rows
    return {grade_of(row): (row.count, int(row.sum("points"))) for row in rows}


def _by_aggregation(clients: Clients, school: str) -> Counts | None:
    """Let the service count each grade; None: it does not (the Datastore emulator, so far).

    It counts only: a mean would need an index of two properties.
    """
    counts: dict[int, tuple[int, int | None]] = {}
    for grade in GRADES_TAUGHT:
        try:
            response = clients.datastore.stub.run_aggregation_query(
                _count_query(school, grade), timeout=QUERY_TIMEOUT_S
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise Unavailable(f"the count of grade {grade} failed: {error.code()}") from error
        [result] = response.batch.aggregation_results
        if count := result.aggregate_properties["count"].integer_value:
            counts[grade] = (count, None)
    return counts


def _billed(counts: Counts) -> int:
    """Return the billed reads of the aggregations, at least one per grade."""
    entries = [counts.get(grade, (0, None))[0] for grade in GRADES_TAUGHT]
    return sum(max(1, math.ceil(count / ENTRIES_PER_READ)) for count in entries)


def _count_query(school: str, grade: int) -> rpc.RunAggregationQueryRequest:
    begin, beyond = student_key(school, ""), student_key(school, "\U0010ffff")
    where = rpc.CompositeFilter(
        op=rpc.CompositeFilter.Operator.AND,
        filters=[
            _filter("grade", rpc.PropertyFilter.Operator.EQUAL, rpc.Value(integer_value=grade)),
            _filter("__key__", rpc.PropertyFilter.Operator.GREATER_THAN, _key_value(begin)),
            _filter("__key__", rpc.PropertyFilter.Operator.LESS_THAN, _key_value(beyond)),
        ],
    )
    students = rpc.Query(
        kind=[rpc.KindExpression(name=SampleStudent._get_kind())],
        filter=rpc.Filter(composite_filter=where),
    )
    count = rpc.AggregationQuery.Aggregation(
        count=rpc.AggregationQuery.Aggregation.Count(), alias="count"
    )
    return rpc.RunAggregationQueryRequest(
        project_id=begin.project(),
        database_id=begin.database() or "",
        partition_id=_key_value(begin).key_value.partition_id,
        aggregation_query=rpc.AggregationQuery(nested_query=students, aggregations=[count]),
    )


def _filter(name: str, op: rpc.PropertyFilter.Operator, value: rpc.Value) -> rpc.Filter:
    prop = rpc.PropertyReference(name=name)
    return rpc.Filter(property_filter=rpc.PropertyFilter(property=prop, op=op, value=value))


def _key_value(key: ndb.Key) -> rpc.Value:
    return rpc.Value(key_value=key._key.to_protobuf())
