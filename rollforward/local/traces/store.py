"""The newest traces, in memory: what the console's pages of traces show."""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rollforward.local.traces.spans import Span, SpanId

# Beyond either, the traces that grew least recently go.
MAX_SPANS = 20_000
MAX_BYTES = 64 * 1024 * 1024
# So that one endless trace pushes out no other.
MAX_SPANS_OF_ONE = 5_000
MAX_BYTES_OF_ONE = MAX_BYTES // 4


@dataclass
class Trace:
    """The spans of one trace that have arrived: more may follow.

    Attributes:
        number: Grows with each trace.
        dropped: How many further spans arrived, of which none is kept.
    """

    number: int
    trace_id: str
    spans: dict[str, Span] = field(default_factory=dict)
    linking: list[Span] = field(default_factory=list)
    bytes: int = 0
    dropped: int = 0
    failures: int = 0

    def add(self, span: Span) -> int:
        """Keep a span; return the bytes that it takes."""
        if span.id.span_id in self.spans:
            return 0  # An exporter whose answer was lost sends again.
        size = span.bytes
        if len(self.spans) >= MAX_SPANS_OF_ONE or self.bytes + size > MAX_BYTES_OF_ONE:
            self.dropped += 1
            return 0
        self.spans[span.id.span_id] = span
        self.bytes += size
        self.failures += span.problem is not None
        if span.links:
            self.linking.append(span)
        return size

    @property
    def started_ns(self) -> int:
        """The begin of its first span."""
        return min(span.started_ns for span in self.spans.values())

    @property
    def duration_ms(self) -> float:
        """The time from the begin of the first span to the end of the last one."""
        ended_ns = max(span.ended_ns for span in self.spans.values())
        return (ended_ns - self.started_ns) / 1e6

    @property
    def root(self) -> Span:
        """The span that all others follow, or else the first one."""
        by_age = sorted(self.spans.values(), key=lambda span: span.started_ns)
        return next((span for span in by_age if not span.parent_id), by_age[0])

    @property
    def tasks(self) -> set[str]:
        """The tasks that it delivered, as queue/name."""
        return {span.task for span in self.spans.values() if span.task}


@dataclass(frozen=True)
class TraceFilter:
    """A filter of traces; an empty field lets all pass.

    Attributes:
        text: In the name of a span, or the name of a task.
        run: The run that one of its spans works for.
        is_failed: Only traces in which a span failed.
        slow_ms: Only traces that take at least this long.
        before: Only traces with a lower number; 0 for all.
    """

    text: str = ""
    run: str = ""
    is_failed: bool = False
    slow_ms: int = 0
    before: int = 0

    def matches(self, trace: Trace) -> bool:
        """Return whether a trace is to be shown."""
        if self.before and trace.number >= self.before:
            return False
        if self.is_failed and not trace.failures:
            return False
        if self.slow_ms and trace.duration_ms < self.slow_ms:
            return False
        spans = trace.spans.values()
        if self.run and not any(span.run == self.run for span in spans):
            return False
        text = self.text.lower()
        return not text or any(
            text in span.name.lower() or text in span.task.lower() for span in spans
        )


class TraceStore:
    """Keeps the newest traces; one thread adds and reads."""

    def __init__(self, *, max_spans: int = MAX_SPANS, max_bytes: int = MAX_BYTES) -> None:
        """Begin without traces."""
        self._max_spans, self._max_bytes = max_spans, max_bytes
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._span_count = self._bytes = 0
        self._numbers = itertools.count(1)

    def add(self, spans: Iterable[Span]) -> None:
        """Keep spans, and drop the traces beyond the limits."""
        for span in spans:
            trace_id = span.id.trace_id
            if trace_id not in self._traces:
                self._traces[trace_id] = Trace(next(self._numbers), trace_id)
            self._traces.move_to_end(trace_id)
            size = self._traces[trace_id].add(span)
            self._bytes += size
            self._span_count += size > 0
            self._drop()

    def get(self, trace_id: str) -> Trace | None:
        """Return a trace; None: it is not kept."""
        return self._traces.get(trace_id)

    def find(self, span_id: SpanId) -> Span | None:
        """Return a span; None: it is not kept."""
        trace = self._traces.get(span_id.trace_id)
        return trace.spans.get(span_id.span_id) if trace is not None else None

    def newest(self, chosen: TraceFilter, limit: int) -> list[Trace]:
        """Return traces that pass a filter, the latest ones first."""
        by_age = sorted(self._traces.values(), key=lambda trace: -trace.number)
        return list(itertools.islice(filter(chosen.matches, by_age), limit))

    def linking_to(self, trace_id: str) -> Iterator[tuple[Span, SpanId]]:
        """Yield spans that link to spans of a trace, once with each one that they link to."""
        for trace in self._traces.values():
            for span in trace.linking:
                for link in dict.fromkeys(span.links):
                    if link.trace_id == trace_id:
                        yield span, link

    def _drop(self) -> None:
        while self._span_count > self._max_spans or self._bytes > self._max_bytes:
            _, oldest = self._traces.popitem(last=False)
            self._span_count -= len(oldest.spans)
            self._bytes -= oldest.bytes
