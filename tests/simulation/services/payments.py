"""A payment service, as Stripe's: it charges once for an Idempotency-Key, and remembers the answer.

    400    the key came with another body before
    409    a request with the key is at work
    402    the card is refused, which is remembered as well

Beyond that it has moods, drawn by the seed: for an order, one attempt after the other.

    503, 429, 503:S, 429:S            it does nothing now; Retry-After says for how many seconds
    reset-before, timeout-before      it does nothing, and the connection is lost, or silent
    reset-after, timeout-after, cut   it works, and so ends the connection, or in its answer
    slow:S                            it works for S seconds, for which a client may not wait
    402                               it refuses the card
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.services.http import HttpAnswer, HttpRequest
from tests.simulation.services.moods import AttemptMoods, MoodsOfOrders

if TYPE_CHECKING:
    from tests.simulation.actors import Actor
    from tests.simulation.world import World

HOST = "http://payments.invalid"
NOW_NOT, NEVER = ("503", "429"), ("402",)
RESET_BEFORE, TIMEOUT_BEFORE = "reset-before", "timeout-before"
RESET_AFTER, TIMEOUT_AFTER, CUT, SLOW = "reset-after", "timeout-after", "cut", "slow"


class Charged(NamedTuple):
    """What a card was charged with."""

    id: str
    cents: int


@dataclass(frozen=True)
class _Known:
    """What is remembered of a key: its request, the answer, and until when the work takes."""

    body: bytes
    answer: HttpAnswer
    ends_s: float


class PaymentService:
    """The charges that it made, and what it will say.

    Args:
        moods: By the order, of one attempt after the other. The last one stays, if it is NEVER.

    Attributes:
        refused: The orders whose cards it refused.
        early: The orders for which somebody did not wait as long as Retry-After had said.
    """

    def __init__(self, world: World, moods: MoodsOfOrders) -> None:
        self._world = world
        self._moods = AttemptMoods(moods, NEVER)
        self._known: dict[str, _Known] = {}
        self._waits: dict[str, tuple[float, Actor]] = {}
        self._charges: list[tuple[str, Charged]] = []
        self.refused: set[str] = set()
        self.early: set[str] = set()

    def charges(self) -> dict[str, list[Charged]]:
        """Return the charges by their orders."""
        charges = defaultdict[str, list[Charged]](list)
        for order, charged in self._charges:
            charges[order].append(charged)
        return charges

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        order = json.loads(request.body)["order"]
        self._look_at_the_time(order)
        mood, _, how = self._moods.take(order).partition(":")
        if mood in NOW_NOT:
            return HttpAnswer(int(mood), headers={"Retry-After": how} if how else {})
        if mood == RESET_BEFORE:
            raise ConnectionResetError(mood)
        if mood == TIMEOUT_BEFORE:
            return HttpAnswer(504, after_s=math.inf)
        works_s = float(how) if mood == SLOW else 0.0
        answer = self._remembered(request, works_s, is_refused=mood in NEVER)
        if mood == RESET_AFTER:
            raise ConnectionResetError(mood)
        if mood == TIMEOUT_AFTER:
            return answer._replace(after_s=math.inf)
        return answer._replace(after_s=works_s, is_cut=mood == CUT)

    def told(self, request: HttpRequest, answer: HttpAnswer) -> None:
        """Note for how long a client must wait that has this answer."""
        if after_s := answer.headers.get("Retry-After"):
            actor = self._world.current
            assert actor is not None
            order = json.loads(request.body)["order"]
            self._waits[order] = self._world.now_s + float(after_s), actor

    def _look_at_the_time(self, order: str) -> None:
        """Note a request that comes too early, although the queue knows that the answer came.

        A process with a wrong clock may mean the right time.
        """
        until_s, actor = self._waits.get(order, (0.0, None))
        has_known = actor is not None and actor.is_acknowledged
        if has_known and self._world.now_s < until_s and not self._world.line.has_met("clock"):
            self.early.add(order)

    def _remembered(self, request: HttpRequest, works_s: float, is_refused: bool) -> HttpAnswer:
        """Return what the key's first request was answered, as far as it is known."""
        key, now_s = request.headers["idempotency-key"], self._world.now_s
        known = self._known.get(key)
        if known is None:
            answer = self._work(request, is_refused)
            self._known[key] = _Known(request.body, answer, now_s + works_s)
            return answer
        if known.body != request.body:
            return HttpAnswer(400, b"the key came with another body")
        return HttpAnswer(409) if now_s < known.ends_s else known.answer

    def _work(self, request: HttpRequest, is_refused: bool) -> HttpAnswer:
        body = json.loads(request.body)
        if is_refused:
            self.refused.add(body["order"])
            return HttpAnswer(402, b"the card is refused")
        charged = Charged(f"charge-{len(self._charges)}", body["cents"])
        self._charges.append((body["order"], charged))
        return HttpAnswer(201, json.dumps(charged._asdict()).encode())
