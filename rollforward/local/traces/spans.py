"""A span as it is kept: its texts cut, and no more attributes, links and events than are shown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAX_NAME_CHARS = 300
MAX_TEXT_CHARS = 500
# Of an event: the traceback of an exception.
MAX_STACK_CHARS = 4_000
MAX_ATTRIBUTES = 32
MAX_LINKS = 128
MAX_EVENTS = 8
# What an empty span takes, and an entry of it; measured, and rounded up.
_SPAN_BYTES, _ENTRY_BYTES = 800, 200

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SpanId:
    """A span of a trace, as another span links to it."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a span, like an exception."""

    at_ns: int
    name: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work of a trace.

    Attributes:
        parent_id: The span that caused it; "": none did.
        kind: "server", "client", "producer", "consumer" or "internal".
        problem: The reason of its failure; None: it did not fail.
        process: The worker that did the work, as its SDK names it.
    """

    id: SpanId
    parent_id: str
    name: str
    kind: str
    started_ns: int
    ended_ns: int
    problem: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    links: tuple[SpanId, ...] = ()
    events: tuple[Event, ...] = ()
    process: str = ""

    @property
    def duration_ms(self) -> float:
        """The time between begin and end."""
        return (self.ended_ns - self.started_ns) / 1e6

    @property
    def run(self) -> str:
        """The run that it works for; "": none."""
        return str(self.attributes.get("rollforward.run", ""))

    @property
    def task(self) -> str:
        """The task that it delivers, as queue/name; "": none."""
        queue, name = (
            str(self.attributes.get(f"messaging.{key}", "")).rpartition("/")[2]
            for key in ("destination.name", "message.id")
        )
        return f"{queue}/{name}" if queue and name else ""

    @property
    def bytes(self) -> int:
        """Its bytes in memory, about."""
        texts = [self.name, self.process, self.problem or "", *_texts(self.attributes)]
        for event in self.events:
            texts += [event.name, *_texts(event.attributes)]
        entries = len(texts) + len(self.links)
        return _SPAN_BYTES + entries * _ENTRY_BYTES + 4 * sum(map(len, texts))


def _texts(attributes: Mapping[str, Value]) -> Iterator[str]:
    for key, value in attributes.items():
        yield key
        yield str(value)
