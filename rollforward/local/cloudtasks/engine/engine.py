"""The state machine of Cloud Tasks: queues, tasks, attempts, names.

No network, no thread and no sleep is in here. The caller passes the clock, the random numbers and
the store, so a test can play the dispatcher. It reads due(), begins deliveries in any order, and
ends them.

1. tasks.create gives a task its place in its queue's heap, by due time.
2. begin_ready (what pause, rate and concurrency allow) or begin_attempt (a
   named one, limits or not) returns the request to send.
3. end_attempt takes the response: the task is done, or waits for its retry, or
   is out of retries and gone. Its name stays blocked for a while.

A task of a pull queue takes another way: leases.lease hands it to a worker for a while, and
leases.acknowledge ends it.

`queues`, `tasks`, `attempts` and `leases` change one EngineState, under one lock; `history`,
`incidents`, `operations` and `policies` keep data that the service hides or returns later.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.delivery.behaviour import Behaviour
from rollforward.local.cloudtasks.delivery.faults import FaultBook
from rollforward.local.cloudtasks.delivery.tokens import TokenIssuer
from rollforward.local.cloudtasks.engine.attempts import Attempts
from rollforward.local.cloudtasks.engine.engine_state import EngineState, Retention
from rollforward.local.cloudtasks.engine.history import History
from rollforward.local.cloudtasks.engine.incidents import Incidents
from rollforward.local.cloudtasks.engine.leases import Leases
from rollforward.local.cloudtasks.engine.operations import Operations
from rollforward.local.cloudtasks.engine.policies import Policies
from rollforward.local.cloudtasks.engine.queues import Queues
from rollforward.local.cloudtasks.engine.tasks import Tasks
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.protocol.paging import PageTokens
from rollforward.local.cloudtasks.store.records import NORMAL, Attempt, DueDelivery, Response
from rollforward.local.cloudtasks.store.store import Store

_POLL_S = 0.01


class Engine:
    """All queues of one project and location.

    The methods here are for a driver: the dispatcher, or a test in its place.

    Args:
        store: Keeps everything; its present content is loaded.
        app: The addresses of App Engine targets.
        issuer: The `iss` claim of the tokens.
        rng: The randomness of the faults.
        behaviour: The behaviour of a profile; by default none.
    """

    def __init__(
        self,
        store: Store,
        place: Place,
        app: AppEngineApp,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        issuer: str = "https://accounts.google.com",
        retention: Retention | None = None,
        behaviour: Behaviour | None = None,
        in_memory: bool = False,
    ) -> None:
        self.place = place
        self.app = app
        self.clock = clock or Clock()
        self.faults = FaultBook(rng or random.Random())
        self.reset_listeners: list[Callable[[], None]] = []
        self._is_in_memory = in_memory
        self._state = state = EngineState(
            store,
            place,
            self.clock,
            self.faults,
            retention or Retention(),
            behaviour or Behaviour(),
        )
        self.lock = state.lock
        self.change = state.change
        self.together = state.together
        self.change_listeners = state.change_listeners
        last_sequence, last_attempt_id = store.last_ids()
        with state.change():
            secret = state.get_or_create("page_secret", lambda: secrets.token_bytes(32))
            page_tokens = PageTokens(secret, self.clock)
            self.tokens = TokenIssuer(self._signing_key, issuer, self.clock.real)
            self.queues = Queues(state, page_tokens)
            self.tasks = Tasks(state, page_tokens, last_sequence)
            self.attempts = Attempts(state, app, self.tokens, last_attempt_id)
            self.leases = Leases(state)
            self.history = History(state)
            self.incidents = Incidents(state)
            self.operations = Operations(state)
            self.policies = Policies(state)
            self.clock.offset_s += float(store.meta("clock_offset_s") or 0.0)
            state.load()

    def _signing_key(self) -> bytes:
        """Return the key that signs tokens, made when the first of them is."""
        from rollforward.local.cloudtasks.delivery import signing_key

        make = signing_key.key_of_this_process if self._is_in_memory else signing_key.new_key
        with self._state.change(is_news=False):
            pem: bytes = self._state.get_or_create("signing_key", make)
        return pem

    def close(self) -> None:
        """Close the store."""
        with self.lock:
            self._state.store.close()

    # --- what a driver does -----------------------------------------------

    def due(self, queue_name: str = "") -> list[DueDelivery]:
        """Return what could be delivered now, rates and concurrency aside."""
        return self.attempts.due(queue_name)

    def begin_attempt(self, name: str, kind: str = NORMAL) -> Attempt:
        """Begin one delivery by hand: of a waiting task, or of a due copy.

        Raises:
            Refused: NOT_FOUND: the task does not exist, or no copy is due.
        """
        return self.attempts.begin(name, kind)

    def begin_ready(self, limit: int = 256) -> list[Attempt]:
        """Begin what every queue's state, rate and concurrency allow, up to limit per queue."""
        return self.attempts.begin_ready(limit)

    def wake_at(self) -> float | None:
        """Return when begin_ready may have something, if nothing else happens."""
        return self.attempts.wake_at()

    def end_attempt(
        self,
        attempt_id: int,
        *,
        status: int | None = None,
        error: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Attempt | None:
        """Take the end of an attempt: the handler's response, or the lack of one.

        Args:
            status: The HTTP status, None when no response came.
            error: The reason why none came, for example DEADLINE_EXCEEDED.

        Returns:
            The attempt, or None when a reset has forgotten it meanwhile.
        """
        return self.attempts.end(attempt_id, Response(status, error, headers or {}, body))

    def is_idle(
        self, queue_name: str = "", *, with_scheduled: bool = False, with_retrying: bool = True
    ) -> bool:
        """Return whether nothing runs or is due, and (by default) nothing retries.

        Args:
            with_scheduled: A task with a later ETA counts as work, too.
            with_retrying: A task between two attempts counts as work.
        """
        with self.lock:
            now_s = self.clock.now()
            return all(
                queue.is_idle(now_s, with_scheduled=with_scheduled, with_retrying=with_retrying)
                for queue in self._state.select(queue_name)
            )

    async def until_idle(
        self,
        timeout_s: float,
        queue_name: str = "",
        *,
        with_scheduled: bool = False,
        with_retrying: bool = True,
    ) -> bool:
        """Wait until the engine is idle; tell whether it became so in time.

        Raises:
            Refused: NOT_FOUND: the queue does not exist.
        """
        if queue_name:
            self.queues.get(queue_name)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while not self.is_idle(
            queue_name, with_scheduled=with_scheduled, with_retrying=with_retrying
        ):
            if loop.time() >= ends_at:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def advance(self, seconds: float) -> float:
        """Move the clock forward and return the new time."""
        with self._state.change():
            self.clock.advance(seconds)
            self._state.store.set_meta("clock_offset_s", self.clock.offset_s)
            self.sweep()
            return self.clock.now()

    def sweep(self) -> None:
        """Drop tasks past their retention, and names and operations that expired."""
        with self._state.change():
            self.tasks.delete_older()
            self._state.prune()

    def reset(self, queue_name: str = "") -> None:
        """Forget tasks, attempts and names: all of them, or one queue's.

        Queues stay, resumed unless their rate is 0. A full reset also takes the
        faults out and puts the clock back.

        Raises:
            Refused: NOT_FOUND: the queue does not exist.
        """
        state = self._state
        with state.change():
            chosen = [state.queue(queue_name)] if queue_name else [*state.queues.values()]
            state.store.clear(queue_name)
            for queue in chosen:
                self.attempts.forget(queue)
                self.queues.restart(queue)
            if not queue_name:
                self.faults.clear()
                self.incidents.clear()
                self.clock.offset_s = 0.0
                state.store.set_meta("clock_offset_s", 0.0)
        for listener in self.reset_listeners:
            listener()

    # --- calls of the API that drivers make, too --------------------------

    def create_queue(self, parent: str, request: Any) -> Any:
        """Create a queue; see Queues.create."""
        return self.queues.create(parent, request)

    def delete_queue(self, name: str) -> None:
        """Delete a queue and its tasks; see Queues.delete."""
        self.queues.delete(name)

    def purge_queue(self, name: str) -> Any:
        """Delete all tasks of a queue; see Queues.purge."""
        return self.queues.purge(name)

    def pause_queue(self, name: str) -> Any:
        """Stop dispatching from a queue."""
        return self.queues.pause(name)

    def resume_queue(self, name: str) -> Any:
        """Dispatch from a queue again."""
        return self.queues.resume(name)

    def get_task(self, name: str, view: int = messages.BASIC) -> Any:
        """Return a live task; see Tasks.get."""
        return self.tasks.get(name, view)

    def list_tasks(
        self, parent: str, view: int = messages.BASIC, size: int = 0, token: str = ""
    ) -> tuple[list[Any], str]:
        """Return a page of a queue's live tasks; see Tasks.page."""
        return self.tasks.page(parent, view, size, token)

    def counts(self) -> dict[str, Counter[str]]:
        """Return how many tasks are in each state, by queue; ended ones as far as kept."""
        return self.history.counts()
