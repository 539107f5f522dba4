"""One trace as a waterfall: its spans below their causes, each with a bar on one axis of time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rollforward.local.console.reading.task_rows import RunLink, summary_of
from rollforward.local.traces.spans import Span, SpanId
from rollforward.local.traces.store import Trace, TraceStore

# Of a page; below one span there may be as many again.
MAX_ROWS = 500
# Spans of one name below one cause are shown one by one up to here; some always.
MAX_ALIKE, SHOWN_ALIKE = 8, 3
MAX_COMPARED = 200  # Spans below one of them.
MAX_DEPTH = 8
WIDTH = 1000
# Narrower than this nobody sees a bar.
_MIN_WIDTH = 4
_TICKS = 4


@dataclass(frozen=True)
class Bar:
    """A bar's place on the axis, in thousandths of it."""

    x: float
    width: float


@dataclass(frozen=True)
class Row:
    """A line of the waterfall: a span, a span of another trace, or many spans alike.

    Attributes:
        depth: The number of causes above it, as far as they are drawn.
        alike: The spans that the line represents: more than one is a line of its own.
        is_elsewhere: Whether the span belongs to another trace, and links to the line above.
        has_lost_cause: Whether the span that caused it has not arrived.
        linked_by: The spans of any trace that link to this one.
    """

    span: Span
    depth: int
    bar: Bar
    alike: Sequence[Span] = ()
    is_elsewhere: bool = False
    has_lost_cause: bool = False
    linked_by: Sequence[Span] = ()

    @property
    def run(self) -> RunLink | None:
        """The run that the span works for; None: none, or of an unknown pattern."""
        pattern = summary_of(self.span.name.removeprefix("process "), b"").group.partition("/")[0]
        return RunLink(pattern, self.span.run) if pattern and self.span.run else None


@dataclass(frozen=True)
class Waterfall:
    """The lines of one trace, or of the part below one span.

    Attributes:
        ticks_ms: Times along the axis, from its begin.
        left: How many spans have no line of their own, because there are too many.
    """

    rows: Sequence[Row]
    ticks_ms: Sequence[float]
    left: int


def draw(trace: Trace, store: TraceStore, *, below: str = "", is_whole: bool = False) -> Waterfall:
    """Return the waterfall of a trace.

    Args:
        below: The id of the span to begin with; "": those without a cause.
        is_whole: Whether spans alike have a line each.
    """
    tree = _Tree(trace, store)
    roots = [trace.spans[below]] if below else tree.roots
    axis = _Axis.around(list(tree.all_below(roots[0]) if below else trace.spans.values()))
    drawing = _Drawing(tree, axis, is_whole)
    drawing.fill(roots)
    ticks = [axis.duration_ms * tick / _TICKS for tick in range(_TICKS + 1)]
    return Waterfall(drawing.rows, ticks, drawing.left)


class _Tree:
    """The spans of a trace by their causes, and the spans that link to them."""

    def __init__(self, trace: Trace, store: TraceStore) -> None:
        by_age = sorted(trace.spans.values(), key=lambda span: (span.started_ns, -span.ended_ns))
        self.spans = trace.spans
        self.children: defaultdict[str, list[Span]] = defaultdict(list)
        self.roots = []
        for span in by_age:
            if span.parent_id in trace.spans and span.parent_id != span.id.span_id:
                self.children[span.parent_id].append(span)
            else:
                self.roots.append(span)
        self.linked_by: defaultdict[str, list[Span]] = defaultdict(list)
        for span, link in store.linking_to(trace.trace_id):
            self.linked_by[link.span_id].append(span)
        self.failed = self._causes_of(span for span in by_age if span.problem is not None)

    def all_below(self, span: Span) -> Iterator[Span]:
        """Yield a span and all that it caused; a circle of causes is not followed."""
        waiting, seen = [span], set()
        while waiting:
            span = waiting.pop()
            if span.id not in seen:
                seen.add(span.id)
                yield span
                waiting += self.children[span.id.span_id]

    def _causes_of(self, spans: Iterator[Span]) -> set[SpanId]:
        """Return the ids of some spans and of all that caused them."""
        causes: set[SpanId] = set()
        for cause in spans:
            span: Span | None = cause
            while span is not None and span.id not in causes:
                causes.add(span.id)
                span = self.spans.get(span.parent_id)
        return causes


@dataclass(frozen=True)
class _Axis:
    """The time from the first begin to the last end."""

    started_ns: int
    ended_ns: int

    @classmethod
    def around(cls, spans: Sequence[Span]) -> "_Axis":
        """Return the axis from the first begin to the last end of some spans."""
        return cls(min(s.started_ns for s in spans), max(s.ended_ns for s in spans))

    @property
    def duration_ms(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e6

    def bar(self, spans: Sequence[Span]) -> Bar:
        """Return the bar from the first begin to the last end of some spans."""
        total_ns = max(1, self.ended_ns - self.started_ns)
        started_ns = min(span.started_ns for span in spans)
        ended_ns = max(span.ended_ns for span in spans)
        x = min(max(0.0, (started_ns - self.started_ns) / total_ns * WIDTH), WIDTH - _MIN_WIDTH)
        end = min(max(x, (ended_ns - self.started_ns) / total_ns * WIDTH), WIDTH)
        return Bar(round(x, 1), round(max(end - x, _MIN_WIDTH), 1))


@dataclass
class _Drawing:
    """Lines, from the first cause down; by a stack of its own, as causes may be thousands deep."""

    tree: _Tree
    axis: _Axis
    is_whole: bool
    rows: list[Row] = field(default_factory=list)
    left: int = 0

    def fill(self, roots: Sequence[Span]) -> None:
        """Draw some spans and all that they caused."""
        waiting: list[tuple[int, list[Span]]] = [(0, group) for group in self._groups(roots)]
        seen: set[SpanId] = set()
        waiting.reverse()
        while waiting:
            depth, spans = waiting.pop()
            if len(self.rows) >= MAX_ROWS:
                self.left += len(spans)
                continue
            span = spans[0]
            if span.id in seen:
                continue
            seen.add(span.id)
            self._add(span, depth, spans)
            if len(spans) == 1:
                below = self._groups(self.tree.children[span.id.span_id])
                waiting += [(depth + 1, group) for group in reversed(below)]

    def _add(self, span: Span, depth: int, spans: list[Span]) -> None:
        tree, depth = self.tree, min(depth, MAX_DEPTH)
        linked_by = tree.linked_by[span.id.span_id] if len(spans) == 1 else []
        is_lost = bool(span.parent_id) and span.parent_id not in tree.spans
        alike = spans if len(spans) > 1 else ()
        bar = self.axis.bar(spans)
        self.rows.append(Row(span, depth, bar, alike, False, is_lost, linked_by))
        elsewhere = [other for other in linked_by if other.id.trace_id != span.id.trace_id]
        drawn = elsewhere[: MAX_ROWS - len(self.rows)]
        self.left += len(elsewhere) - len(drawn)
        for other in drawn:
            below = min(depth + 1, MAX_DEPTH)
            self.rows.append(Row(other, below, self.axis.bar([other]), is_elsewhere=True))

    def _groups(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Return spans one by one, and those alike that are too many together."""
        by_name: defaultdict[str, list[Span]] = defaultdict(list)
        for span in spans:
            by_name[span.name].append(span)
        groups = []
        for alike in by_name.values():
            if self.is_whole or len(alike) <= MAX_ALIKE:
                groups += [[span] for span in alike]
                continue
            shown, rest = self._split(alike)
            groups += [*([span] for span in shown), rest] if rest else [[span] for span in shown]
        return sorted(groups, key=lambda group: group[0].started_ns)

    def _split(self, alike: Sequence[Span]) -> tuple[list[Span], list[Span]]:
        """Return the spans alike that have a line each, and the others.

        The first ones have, those that failed, and those with work below that no other has: the
        last member of a batch causes its callback.
        """
        shown, rest = [*alike[:SHOWN_ALIKE]], list[Span]()
        names = {name for span in shown for name in self._names_below(span)}
        for span in alike[SHOWN_ALIKE:]:
            below = self._names_below(span)
            is_shown = span.id in self.tree.failed or not below <= names
            (shown if is_shown else rest).append(span)
            names |= below
        return shown, rest

    def _names_below(self, span: Span) -> set[str]:
        return {below.name for below in islice(self.tree.all_below(span), MAX_COMPARED)}
