"""Faults by name; each call returns when its fault has ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from grpc import StatusCode

from benchmarks.chaos.stage import Stage
from benchmarks.harness.proxies import COMMIT, Trouble, away, late, lost, refused, slow, twice

TROUBLE_S, AWAY_S, SILENT_S = 4.0, 6.0, 3.0
# Far more than the clock skew that time services allow.
JUMP_S = 60.0
# One round in this many has two faults at a time.
PAIR_EVERY = 3

Strike = Callable[[Stage], None]


def _datastore(answer: Callable[..., bytes], share: float, method: str = "") -> Strike:
    trouble = Trouble(answer, share, method)
    return lambda stage: stage.datastore_trouble(trouble, TROUBLE_S)


def _tasks(answer: Callable[..., bytes], share: float, seconds: float = TROUBLE_S) -> Strike:
    return lambda stage: stage.tasks_trouble(Trouble(answer, share), seconds)


FAULTS: dict[str, Strike] = {
    "killed worker": lambda stage: stage.kill(1),
    "killed workers": lambda stage: stage.kill(8),
    "memcached silent": lambda stage: stage.stop("memcached", SILENT_S),
    "memcached emptied": lambda stage: stage.flush(),
    "platform silent": lambda stage: stage.stop_dev_server(),
    "clocks jump": lambda stage: stage.jump(JUMP_S, TROUBLE_S),
    "disk full": lambda stage: stage.fill_disk(TROUBLE_S),
    "restart": lambda stage: stage.stack.restart(),
    "datastore silent": lambda stage: stage.silence_datastore(SILENT_S),
    "datastore connections cut": lambda stage: stage.cut(TROUBLE_S),
    "datastore replies lost": _datastore(lost, 0.1),
    "commits lost": _datastore(lost, 0.3, COMMIT),
    "commits late": _datastore(late, 0.3, COMMIT),
    "commits doubled": _datastore(twice, 1.0, COMMIT),
    "commits refused": _datastore(away, 1.0, COMMIT),
    "commits aborted": _datastore(refused(StatusCode.ABORTED), 0.7, COMMIT),
    "datastore errors": _datastore(refused(StatusCode.INTERNAL), 0.5),
    "datastore quota": _datastore(refused(StatusCode.RESOURCE_EXHAUSTED), 0.5),
    "datastore slow": _datastore(slow, 1.0),
    "answers cut short": lambda stage: stage.cut_answers(TROUBLE_S),
    "cloud tasks replies lost": _tasks(lost, 0.5),
    "cloud tasks calls doubled": _tasks(twice, 1.0),
    "cloud tasks away": _tasks(away, 1.0, AWAY_S),
}
# These stop the stack, so no other fault can be injected at the same time.
ALONE = ("restart",)


def rounds(seed: int, names: Sequence[str] = tuple(FAULTS)) -> Iterator[tuple[str, ...]]:
    """Yield the faults of each round, without end, all kinds equally often."""
    drawn, number = random.Random(seed), 0
    while True:
        bag = drawn.sample(names, len(names))
        while bag:
            number += 1
            fault = bag.pop()
            partners = [name for name in names if name != fault and name not in ALONE]
            if number % PAIR_EVERY or fault in ALONE or not partners:
                yield (fault,)
            else:
                yield fault, drawn.choice(partners)
