"""The stage of a demo: the incidents of a run, on one axis of time.

templates/_stage.html draws a `Stage`: the fault switches in a bar, the axis with its flags, the
struck deliveries, the closing line, the cost. Each demo draws its own moving picture.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from handlers.shared.balance import Balance
from handlers.shared.formatting import duration, plural
from handlers.shared.incidents import Delivery, Incidents, Mark

BRAKING = (429, *range(500, 600))  # Answers that slow a queue of a URL down.
BRAKING_IN_WORDS = {429: "a task that waits", 503: "a service that is unavailable"}
FAULTS_IN_WORDS = {
    "error": "got an error response",
    "lose_response": "lost its response",
    "overlap": "was delivered twice at the same time",
    "duplicate": "was redelivered after its end",
    "delay": "was delayed",
    "kill_worker": "lost its worker",
}
DIED = "lost its worker"
MARKS_IN_WORDS: Mapping[str, Callable[[str], str]] = {
    "kill": lambda pid: f"worker {pid} killed",
    "flush": lambda _: "memcached flushed",
    "resize": lambda count: plural(int(count), "worker"),
}
# Of an axis: faults that are closer together share a flag.
SAME_FLAG = 0.02
# An axis grows in steps, so that its flags do not creep all the time.
LENGTHS_S = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 3600, 7200)
STRUCK_SHOWN = 60
NAMED = 4
# A worker's deliveries fail as soon as it is gone.
DIES_WITHIN_S = 3.0
# The label of a flag, in percent of the axis for each character.
CHARACTER = 0.74
LABEL_ROWS = 2


@dataclass(frozen=True)
class Flag:
    """Something that happened at one moment; `x` in percent of the axis, `row` of its label."""

    kind: str  # "start", "fault", "kill", "flush", "resize", "healed" or "end".
    at_s: float
    text: str
    count: int = 1
    x: float = 0.0
    row: int | None = None


@dataclass(frozen=True)
class Struck:
    """A delivery that was hit, and after how long its task was done all the same."""

    delivery: str
    fault: str
    at_s: float
    healed_s: float | None


@dataclass(frozen=True)
class Slowed:
    """A queue that is slowed: to how much, why, and for how long; `detail` is the response."""

    queue: str
    percent: float
    reason: str
    left_s: float
    detail: str = ""


@dataclass(frozen=True)
class Cell:
    """A number of the cost, with a detail: the same for one item, mostly."""

    label: str
    value: str
    detail: str
    is_doubtful: bool = False


@dataclass(frozen=True)
class Switches:
    """Faults in force, as a page shows them; `Stage` describes the fields."""

    switches: frozenset[str] = field(default_factory=frozenset)
    by_console: frozenset[str] = field(default_factory=frozenset)
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class Stage:
    """A run's incidents, ready to be drawn.

    Attributes:
        hit, repaired, lost: Deliveries that were struck; whose tasks are done; that are given up.
        kills: How many workers were killed while the run lasted.
        outcome: The last kill's or flush's effect in a sentence; `affected` names its deliveries.
        switches: The names of the switches that are on.
        by_console: Those of them that a rule of the console has switched on.
        faults: Rules in force that no switch of the page shows, in words.
        closing: All of it in one line.
        now: Position of the run on its axis, in percent; None when it is over.
        length_s: Length of the axis; 0 without a run.
        deliveries: All that were struck, repeated or failed.
        balance: The run's books; None: it claims nothing.
    """

    flags: Sequence[Flag] = ()
    ticks: Sequence[tuple[float, str]] = ()
    now: float | None = None
    hit: int = 0
    repaired: int = 0
    lost: int = 0
    kills: int = 0
    struck: Sequence[Struck] = ()
    outcome: str = ""
    affected: str = ""
    slowed: Sequence[Slowed] = ()
    switches: frozenset[str] = field(default_factory=frozenset)
    by_console: frozenset[str] = field(default_factory=frozenset)
    faults: Sequence[str] = ()
    closing: str = ""
    cost: Sequence[Cell] = ()
    length_s: float = 0.0
    deliveries: Sequence[Delivery] = ()
    balance: Balance | None = None

    @property
    def hits_in_words(self) -> str:
        """Hits, repairs and losses as a phrase."""
        return f"{plural(self.hit, 'fault')} hit, {self.repaired} repaired, {self.lost} lost"


@dataclass(frozen=True)
class Timeline:
    """Beginning of a run, in seconds since 1970, and its length until its end or until now.

    `is_complete`: a run that is over has done all its work.
    """

    started: float
    elapsed_s: float
    is_over: bool
    begin: str = "sent"
    end: str = "done"
    is_complete: bool = True

    @property
    def length_s(self) -> float:
        if self.is_over:
            return max(self.elapsed_s, 0.1)
        return next((s for s in LENGTHS_S if s >= self.elapsed_s * 1.02), self.elapsed_s * 1.1)

    def of(self, at: float) -> float:
        """Return a moment as seconds since the run began, within its axis."""
        return min(max(0.0, at - self.started), self.length_s)

    def has(self, at: float) -> bool:
        """Return whether the run was going on at a moment, or its last second was."""
        return self.started <= at and (not self.is_over or at <= self.started + self.elapsed_s)


def moment_of(ms: float) -> datetime.datetime:
    """Return a moment of milliseconds since 1970."""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def stage_of(
    time: Timeline | None,
    incidents: Incidents,
    switches: Switches,
    *,
    now: float,
    name: Callable[[Delivery], str],
    closing: Callable[[Stage], str] = lambda stage: "",
    cost: Sequence[Cell] = (),
    balance: Balance | None = None,
) -> Stage:
    """Return the stage of a run; without a run it has its switches alone.

    Args:
        name: Returns a delivery's name for visitors.
        closing: The line that says it all, of a stage without one.
        balance: The run's books.
    """
    slowed = _slowed(incidents, now)
    if time is None:
        own_queues = {delivery.queue for delivery in incidents.deliveries}
        slowed = [row for row in slowed if row.queue in own_queues]
        return Stage(**asdict(switches), slowed=slowed, cost=cost, balance=balance)
    hits = [delivery for delivery in incidents.deliveries if delivery.is_hit]
    outcome, affected = _outcome(incidents, time, name)
    stage = Stage(
        flags=_placed(_flags(time, hits, incidents), time.length_s),
        ticks=_ticks(time.length_s),
        now=None if time.is_over else round(100 * time.elapsed_s / time.length_s, 1),
        hit=len(hits),
        repaired=sum(hit.is_repaired for hit in hits),
        lost=sum(hit.task_state == "failed" for hit in hits),
        kills=sum(mark.kind == "kill" and time.has(mark.at) for mark in incidents.marks),
        struck=[_struck(time, hit, name) for hit in reversed(hits)][:STRUCK_SHOWN],
        outcome=outcome,
        affected=affected,
        slowed=[] if time.is_over else slowed,
        **asdict(switches),
        cost=cost,
        length_s=time.length_s,
        deliveries=incidents.deliveries,
        balance=balance,
    )
    return replace(stage, closing=closing(stage))


def _struck(time: Timeline, delivery: Delivery, name: Callable[[Delivery], str]) -> Struck:
    healed_at = delivery.task_ended_at if delivery.is_repaired else None
    return Struck(
        name(delivery),
        " and ".join(FAULTS_IN_WORDS.get(fault, fault) for fault in delivery.faults) or DIED,
        time.of(delivery.at),
        None if healed_at is None else max(0.0, healed_at - delivery.at),
    )


def victims(mark: Mark, incidents: Incidents) -> list[Delivery]:
    """Return the deliveries that a worker was handling when it was killed."""
    return [
        delivery
        for delivery in incidents.deliveries
        if delivery.is_lost_with_its_worker and abs(delivery.ended_at - mark.at) < DIES_WITHIN_S
    ]


def _outcome(
    incidents: Incidents, time: Timeline, name: Callable[[Delivery], str]
) -> tuple[str, str]:
    """Return the effect of the run's last kill or flush, and the deliveries that it hit.

    Kills before the run, after it, or while there is none, are other pages' to report.
    """
    marks = [mark for mark in incidents.marks if time.has(mark.at)]
    if not marks:
        return "", ""
    mark = marks[-1]
    when = f" at {duration(time.of(mark.at))}"
    if mark.kind == "flush":
        return f"memcached was flushed{when}.", ""
    if mark.kind == "resize":
        return f"The app was resized to {MARKS_IN_WORDS['resize'](mark.text)}{when}.", ""
    lost = victims(mark, incidents)
    if not lost:
        return f"Worker {mark.text} was killed{when}. It had no delivery of this run.", ""
    repaired = sum(delivery.is_repaired for delivery in lost)
    state = "all are done" if repaired == len(lost) else f"{repaired} of them are done"
    deliveries = plural(len(lost), "delivery was", "deliveries were")
    names = list(dict.fromkeys(name(delivery) for delivery in lost))
    and_more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        f"Worker {mark.text} was killed{when}. {deliveries} lost and redelivered, {state}.",
        f"{', '.join(names[:NAMED])}{and_more}",
    )


def suffered(stage: Stage) -> list[str]:
    """Return the hits and kills as parts of the closing line; [] when nothing was tried."""
    if not (stage.hit or stage.switches or stage.kills):
        return []
    faults = plural(stage.hit, "fault")
    return [faults, f"{plural(stage.kills, 'worker')} killed"] if stage.kills else [faults]


def flushed(stage: Stage) -> list[str]:
    """Return how often memcached was flushed, as a part of the closing line; [] when never."""
    flushes = sum(flag.kind == "flush" for flag in stage.flags)
    return [f"memcached flushed {plural(flushes, 'time')}"] if flushes else []


def _slowed(incidents: Incidents, now: float) -> list[Slowed]:
    slowed = []
    for queue in incidents.slowed:
        reason, detail = _why_slowed(queue.queue, incidents.deliveries)
        left_s = max(0.0, queue.full_speed_at - now)
        slowed.append(Slowed(queue.queue, 100 * queue.speed_factor, reason, left_s, detail))
    return slowed


def _why_slowed(queue: str, deliveries: Sequence[Delivery]) -> tuple[str, str]:
    """Return the status of the last response that slowed a queue, and its text."""
    for delivery in reversed(deliveries):
        if delivery.queue == queue and delivery.status in BRAKING:
            cause = BRAKING_IN_WORDS.get(delivery.status or 0, "a server error")
            return f"{delivery.status}, {cause}", delivery.reason
    return "429 or 5xx", ""


# The axis


def _flags(time: Timeline, hits: Sequence[Delivery], incidents: Incidents) -> list[Flag]:
    flags = [Flag("start", 0.0, time.begin)]
    for hit in hits:
        at_s = time.of(hit.at)
        latest = flags[-1]
        if latest.kind == "fault" and at_s - latest.at_s < SAME_FLAG * time.length_s:
            count = latest.count + 1
            flags[-1] = Flag("fault", latest.at_s, plural(count, "fault"), count)
        else:
            flags.append(Flag("fault", at_s, "1 fault"))
    for mark in incidents.marks:
        if time.has(mark.at):
            flags.append(Flag(mark.kind, time.of(mark.at), MARKS_IN_WORDS[mark.kind](mark.text)))
            flags += _healed(time, mark, incidents) if mark.kind == "kill" else []
    ends = [hit.task_ended_at for hit in hits if hit.is_repaired and hit.task_ended_at]
    if hits and len(ends) == len(hits):
        flags.append(Flag("healed", time.of(max(ends)), "all repaired", len(hits)))
    if time.is_over:
        kind = "end" if time.is_complete else "cut"
        flags.append(Flag(kind, time.elapsed_s, f"{time.end} after {duration(time.elapsed_s)}"))
    return sorted(flags, key=lambda flag: flag.at_s)


def _healed(time: Timeline, mark: Mark, incidents: Incidents) -> list[Flag]:
    lost = victims(mark, incidents)
    ends = [hit.task_ended_at for hit in lost if hit.task_ended_at and hit.is_repaired]
    if not lost or len(ends) < len(lost):
        return []
    return [Flag("healed", time.of(max(ends)), f"{len(lost)} redelivered", len(lost))]


def _placed(flags: Sequence[Flag], length_s: float) -> list[Flag]:
    """Give each flag its place, and a row to the labels that fit; faults have no label."""
    free_from = [0.0] * LABEL_ROWS
    placed = []
    for flag in flags:
        x = round(100 * flag.at_s / length_s, 2)
        row = None
        if flag.kind != "fault":
            width = CHARACTER * len(flag.text) + 1.5
            start = max(0.0, min(x - width / 2, 100 - width))
            row = next((i for i, free in enumerate(free_from) if free <= start), None)
            if row is not None:
                free_from[row] = start + width
        placed.append(Flag(flag.kind, flag.at_s, flag.text, flag.count, x, row))
    return placed


def _ticks(length_s: float) -> list[tuple[float, str]]:
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 300, 600, 3600) if length_s / s <= 8), 7200)
    is_long = length_s > 90
    return [
        (round(100 * s / length_s, 2), f"{s // 60}:{s % 60:02d}" if is_long else f"{s} s")
        for s in range(0, int(length_s) + 1, step)
    ]
