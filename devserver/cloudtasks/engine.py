"""The state machine of Cloud Tasks: queues, tasks, attempts, names.

No network, no thread and no sleep is in here. The clock, the randomness and
the store come from outside, so a test can be the dispatcher itself: it asks
what is due(), begins any of it in any order, and says how it ended.

1. create_task gives a task its place in its queue's heap, by due time.
2. begin_ready (what pause, rate and concurrency allow) or begin_attempt (a
   named one, limits or not) returns the request to send.
3. end_attempt takes the answer: the task is done, or waits for its retry, or
   is out of retries and gone. Its name stays blocked for a while.

One lock guards everything; each public method is one transaction of the store.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import functools
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from devserver.cloudtasks import answers, lanes, messages, paging, refusals, rules, tokens
from devserver.cloudtasks.clock import Clock
from devserver.cloudtasks.faults import DEFAULT_DELAY_S, FaultBook
from devserver.cloudtasks.lanes import Lane, phase_of
from devserver.cloudtasks.listing import QueueFilter
from devserver.cloudtasks.names import Place, queue_of_task
from devserver.cloudtasks.outgoing import AppEngineApp, build_request
from devserver.cloudtasks.records import (
    DELETED,
    DONE,
    DUPLICATE,
    FAILED,
    FORCED,
    LIVE,
    NORMAL,
    OVERLAP,
    Attempt,
    DueDelivery,
    TaskRecord,
)
from devserver.cloudtasks.retries import policy_of
from devserver.cloudtasks.store import Store, StoredQueue

MAX_TASKS_PAGE = 1000
MAX_QUEUES_PAGE = 9800
MAX_BODY_KEPT_BYTES = 64 * 1024

_DAY_S = 86400.0
_PRUNE_EVERY = 256
_DEFAULT_KILL_AFTER_S = 0.05
# Odd, so that multiplying by it maps the sequences one to one onto ids that
# look random and spread over the whole range, as the service's do.
_ID_FACTOR = 0x9E3779B97F4A7C15
_ID_BITS = 64


@dataclass(frozen=True)
class Retention:
    """How long things are remembered.

    Attributes:
        tombstone_s: A task's name after its end, 24 hours at the service.
        yaml_tombstone_s: The same for a queue of queue.yaml, 9 days.
        queue_tombstone_s: A deleted queue's name, 3 days.
        task_s: A task that never succeeds, 31 days after its creation.
        yaml_task_s: The same for a queue of queue.yaml, 10 years.
        ended_tasks: How many ended tasks are kept to be looked at.
        operation_s: A long-running operation.
    """

    tombstone_s: float = _DAY_S
    yaml_tombstone_s: float = 9 * _DAY_S
    queue_tombstone_s: float = 3 * _DAY_S
    task_s: float = 31 * _DAY_S
    yaml_task_s: float = 3650 * _DAY_S
    ended_tasks: int = 20_000
    operation_s: float = _DAY_S


@functools.cache
def _key_of_this_process() -> bytes:
    """Return one signing key for all stores in memory: making one is slow."""
    return tokens.new_key()


class Engine:
    """All queues of one project and location.

    Args:
        store: Where everything is kept; what it holds already is taken over.
        app: Where App Engine targets are.
        issuer: The `iss` claim of the tokens.
        chance: The randomness of the faults.
    """

    def __init__(
        self,
        store: Store,
        place: Place,
        app: AppEngineApp,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        issuer: str = "https://accounts.google.com",
        retention: Retention | None = None,
        in_memory: bool = False,
    ) -> None:
        self.place = place
        self.app = app
        self.retention = retention or Retention()
        self.clock = clock or Clock()
        self.faults = FaultBook(chance or random.Random())
        self.lock = threading.RLock()
        self.change_listeners: list[Callable[[], None]] = []
        self.reset_listeners: list[Callable[[], None]] = []
        self._store = store
        self._lanes: dict[str, Lane] = {}
        self._running: dict[int, Attempt] = {}
        self._depth = 0
        self._ended_since_prune = 0
        self._last_sequence, self._last_attempt_id = store.last_ids()
        with self._change():
            pem = self._kept("signing_key", _key_of_this_process if in_memory else tokens.new_key)
            self._secret = self._kept("page_secret", lambda: secrets.token_bytes(32))
            self._salt = int(self._kept("id_salt", lambda: str(secrets.randbits(_ID_BITS))))
            self.clock.offset_s += float(store.meta("clock_offset_s") or 0.0)
            self._load()
        self.tokens = tokens.TokenIssuer(pem, issuer, self.clock.real)

    def close(self) -> None:
        """Close the store."""
        with self.lock:
            self._store.close()

    @contextmanager
    def _change(self, *, is_news: bool = True) -> Iterator[None]:
        """Hold the lock; commit, and tell the listeners, when the outermost block ends."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                is_outermost = self._depth == 0
                if is_outermost:
                    self._store.commit()
        if is_outermost and is_news:
            for listener in self.change_listeners:
                listener()

    def _kept(self, key: str, make: Callable[[], Any]) -> Any:
        """Return a value of the store, made and kept the first time."""
        value = self._store.meta(key)
        if value is None:
            value = make()
            self._store.set_meta(key, value)
        return value

    def _load(self) -> None:
        """Take over what the store holds; what was running is still due, and runs again."""
        now = self.clock.now()
        for stored in self._store.queues():
            queue = messages.Queue.FromString(stored.spec)
            self._lanes[stored.name] = Lane(queue, stored.from_yaml, now)
        self._store.close_lost_attempts()
        for task in self._store.live_tasks():
            self._lanes[task.queue].add(task)

    # --- queues -----------------------------------------------------------

    def create_queue(self, parent: str, given: Any) -> Any:
        """Create a queue and return its message.

        Raises:
            Refused: its name is malformed, in use, or was so too recently.
        """
        with self._change():
            self.place.check_parent(parent)
            self.place.check_new_queue_name(given.name, parent)
            if given.name in self._lanes:
                raise refusals.queue_exists()
            return self._new_lane(given).queue

    def update_queue(self, given: Any, paths: Iterable[str]) -> Any:
        """Change a queue, or create it when it is missing.

        Raises:
            Refused: a name, path or value the service would not take.
        """
        with self._change():
            self.place.check_new_queue_name(given.name)
            lane = self._lanes.get(given.name)
            if lane is None:
                return self._new_lane(given).queue
            queue = rules.updated_queue(lane.queue, given, list(paths))
            rules.check_queue(queue)
            lane.configure(queue, lane.from_yaml, self.clock.now())
            self._save_queue(lane)
            return lane.queue

    def put_yaml_queue(self, queue: Any) -> None:
        """Create or replace a queue as queue.yaml declares it, state included."""
        with self._change():
            lane = self._lanes.get(queue.name)
            if lane is None:
                lane = self._lanes[queue.name] = Lane(queue, True, self.clock.now())
            lane.configure(queue, True, self.clock.now())
            self._save_queue(lane)

    def _new_lane(self, given: Any) -> Lane:
        now = self.clock.now()
        if self._store.tombstone_expiry(given.name) > now:
            raise refusals.queue_too_recent()
        rules.check_queue(given)
        lane = self._lanes[given.name] = Lane(rules.complete_queue(given), False, now)
        self._save_queue(lane)
        return lane

    def _save_queue(self, lane: Lane) -> None:
        spec = lane.queue.SerializeToString()
        self._store.put_queue(StoredQueue(lane.name, spec, lane.from_yaml))

    def get_queue(self, name: str) -> Any:
        """Return a queue's message.

        Raises:
            Refused: NOT_FOUND.
        """
        with self.lock:
            return self._lane(name).queue

    def _lane(self, name: str) -> Lane:
        self.place.check_queue_name(name)
        lane = self._lanes.get(name)
        if lane is None:
            raise refusals.queue_unknown()
        return lane

    def list_queues(
        self, parent: str, query: str = "", size: int = 0, token: str = ""
    ) -> tuple[list[Any], str]:
        """Return a page of queue messages by name, and the next page's token.

        Raises:
            Refused: the filter or the token is not understood.
        """
        with self.lock:
            self.place.check_parent(parent)
            wanted = QueueFilter(query)
            after, limit = self._page_start("queues:" + query, size, token, MAX_QUEUES_PAGE)
            found = [
                lane.queue
                for name, lane in sorted(self._lanes.items())
                if name > after and wanted.matches(lane.queue)
            ]
            page = found[:limit]
            more = len(found) > limit
            return page, self._next_token("queues:" + query, page[-1].name) if more else ""

    def _page_start(self, listing: str, size: int, token: str, largest: int) -> tuple[str, int]:
        if size < 0:
            raise refusals.invalid("page_size must not be negative.")
        now = self.clock.now()
        after = paging.position_of(self._secret, listing, token, now) if token else ""
        return after, min(size or largest, largest)

    def _next_token(self, listing: str, position: str) -> str:
        return paging.sign(self._secret, listing, position, self.clock.now())

    def delete_queue(self, name: str) -> None:
        """Delete a queue and its tasks; its name stays blocked for a while.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._change():
            self.place.check_queue_name(name)
            lane = self._lanes.get(name)
            if lane is None:
                raise refusals.entity_unknown()
            self._delete_all(lane)
            del self._lanes[name]
            self._store.delete_queue(name)
            self._store.put_tombstone(name, self.clock.now() + self.retention.queue_tombstone_s)

    def purge_queue(self, name: str) -> Any:
        """Delete all tasks of a queue; attempts under way are not stopped."""
        with self._change():
            lane = self._lane(name)
            self._delete_all(lane)
            messages.set_seconds(lane.queue.purge_time, self.clock.now())
            self._save_queue(lane)
            return lane.queue

    def _delete_all(self, lane: Lane) -> None:
        lane.extras.clear()
        for task in list(lane.tasks.values()):
            self._finish(lane, task, DELETED)

    def pause_queue(self, name: str) -> Any:
        """Stop dispatching from a queue."""
        return self._set_state(name, messages.PAUSED)

    def resume_queue(self, name: str) -> Any:
        """Dispatch from a queue again."""
        return self._set_state(name, messages.RUNNING)

    def _set_state(self, name: str, state: int) -> Any:
        with self._change():
            lane = self._lane(name)
            lane.queue.state = state
            self._save_queue(lane)
            return lane.queue

    # --- tasks ------------------------------------------------------------

    def create_task(self, parent: str, given: Any, view: int = messages.BASIC) -> Any:
        """Add a task and return it as the view shows it.

        Raises:
            Refused: a rule is broken, the queue is unknown, or the name was
                used before.
        """
        with self._change():
            self.place.check_queue_name(parent)
            if given.name:
                self._check_named(parent, given.name)
            lane = self._lane(parent)
            return self._add_task(lane, given, view)

    def create_tasks(self, parent: str, requests: Iterable[Any]) -> list[Any]:
        """Add many tasks in one commit; a refused one yields its Refused.

        Raises:
            Refused: the queue is unknown.
        """
        with self._change():
            self._lane(parent)
            return [self._created_or_refused(parent, request) for request in requests]

    def _created_or_refused(self, parent: str, request: Any) -> Any:
        try:
            return self.create_task(parent, request.task, request.response_view)
        except refusals.Refused as refused:
            return refused

    def _check_named(self, parent: str, name: str) -> None:
        self.place.check_task_name(name)
        if (queue_name := queue_of_task(name)) != parent:
            raise refusals.task_of_other_queue(parent, queue_name)

    def _add_task(self, lane: Lane, given: Any, view: int) -> Any:
        now = self.clock.now()
        schedule_at = rules.schedule_of(given, now)
        message = messages.Task()
        rules.complete_task(given, message, self.place.project)
        if given.name and self._is_taken(lane, given.name, now):
            raise refusals.task_exists()
        sequence = self._last_sequence + 1
        message.name = given.name or f"{lane.name}/tasks/{self._new_id(sequence)}"
        message.create_time.seconds = int(now)
        rules.check_size(given, message, schedule_at)
        self._last_sequence = sequence
        task = _record(message, lane.name, sequence, schedule_at, now)
        task.is_named = bool(given.name)
        self._store.insert_task(task)
        lane.add(task)
        return _shown(task, message, view)

    def _is_taken(self, lane: Lane, name: str, now: float) -> bool:
        return name in lane.tasks or self._store.tombstone_expiry(name) > now

    def _new_id(self, sequence: int) -> int:
        return ((sequence ^ self._salt) * _ID_FACTOR) % 2**_ID_BITS

    def get_task(self, name: str, view: int = messages.BASIC) -> Any:
        """Return a live task.

        Raises:
            Refused: NOT_FOUND, in other words when the task ended recently.
        """
        with self.lock:
            self.place.check_task_name(name)
            lane = self._lanes.get(queue_of_task(name))
            task = lane.tasks.get(name) if lane else None
            if task is not None:
                return _shown(task, messages.Task.FromString(task.spec), view)
            if self._ended_recently(name):
                raise refusals.task_ended()
            raise refusals.entity_unknown()

    def _ended_recently(self, name: str) -> bool:
        now = self.clock.now()
        if self._store.tombstone_expiry(name) > now:
            return True
        # Names of the service's own making have no tombstone: nobody may ask
        # for them again. Their history says when they ended.
        task = self._store.task_by_name(name)
        lane = self._lanes.get(queue_of_task(name))
        if task is None or task.ended_at is None or lane is None:
            return False
        return task.ended_at + self._tombstone_s(lane) > now

    def list_tasks(
        self, parent: str, view: int = messages.BASIC, size: int = 0, token: str = ""
    ) -> tuple[list[Any], str]:
        """Return a page of a queue's live tasks, oldest first, and the next token.

        Raises:
            Refused: the queue is unknown or the token is not understood.
        """
        with self.lock:
            lane = self._lane(parent)
            after, limit = self._page_start(f"tasks:{parent}", size, token, MAX_TASKS_PAGE)
            found = _first_after(lane.tasks.values(), int(after or 0), limit + 1)
            page = [
                _shown(task, messages.Task.FromString(task.spec), view) for task in found[:limit]
            ]
            if len(found) <= limit:
                return page, ""
            return page, self._next_token(f"tasks:{parent}", str(found[limit - 1].sequence))

    def delete_task(self, name: str) -> None:
        """Delete a live task; an attempt under way is not stopped.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._change():
            lane, task = self._live_task(name)
            self._finish(lane, task, DELETED)

    def delete_tasks(self, task_names: Iterable[str]) -> list[refusals.Refused | None]:
        """Delete many tasks in one commit; a refused one yields its Refused."""
        with self._change():
            return [self._deleted_or_refused(name) for name in task_names]

    def _deleted_or_refused(self, name: str) -> refusals.Refused | None:
        try:
            self.delete_task(name)
        except refusals.Refused as refused:
            return refused
        return None

    def _live_task(self, name: str) -> tuple[Lane, TaskRecord]:
        self.place.check_task_name(name)
        lane = self._lanes.get(queue_of_task(name))
        task = lane.tasks.get(name) if lane else None
        if lane is None or task is None:
            raise refusals.entity_unknown()
        return lane, task

    def run_task(self, name: str, view: int = messages.BASIC) -> Any:
        """Dispatch a live task now, whatever its queue's state, rate and load.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._change():
            lane, task = self._live_task(name)
            task.schedule_at = task.due_at = self.clock.now()
            task.entry = None
            lane.extras.append((task, FORCED))
            self._store.update_task(task)
            return _shown(task, messages.Task.FromString(task.spec), view)

    def go_back(self, since: float) -> int:
        """Undo what came of tasks from a moment on; return how many are due again or dropped.

        For a store behind the handlers that has gone back to that moment. Tasks that ended live
        again: what they did is gone. Tasks that were created are dropped and their names free:
        what asked for them is gone, or asks again. Tasks that somebody deleted stay deleted.
        """
        with self._change():
            dropped = [
                (lane, task)
                for lane in self._lanes.values()
                for task in lane.tasks.values()
                if task.created_at >= since
            ]
            for lane, task in dropped:
                self._finish(lane, task, DELETED)
            self._store.free_names(since)
            revived = [
                task
                for task in self._store.tasks_ended(since, (DONE, FAILED))
                if task.created_at < since and task.queue in self._lanes
            ]
            for task in revived:
                self._make_due(self._lanes[task.queue], task)
            return len(dropped) + len(revived)

    def retry_task(self, name: str) -> None:
        """Put a task back to work: a window of the emulator, not of the service.

        A waiting task becomes due now; a failed one lives again; one that is
        done is delivered once more, as a duplicate.

        Raises:
            Refused: NOT_FOUND, or FAILED_PRECONDITION for a deleted task.
        """
        with self._change():
            lane = self._lane(queue_of_task(name))
            task = lane.tasks.get(name) or self._store.task_by_name(name)
            if task is None:
                raise refusals.entity_unknown()
            if task.state == DELETED:
                raise refusals.Refused("FAILED_PRECONDITION", "The task was deleted.")
            if task.state == DONE:
                lane.extras.append((task, DUPLICATE))
            elif not task.running:
                self._make_due(lane, task)

    def _make_due(self, lane: Lane, task: TaskRecord) -> None:
        was_live = task.state == LIVE
        task.schedule_at = task.due_at = self.clock.now()
        task.state, task.ended_at = LIVE, None
        self._store.update_task(task)
        if was_live:
            lane.push(task)
        else:
            lane.add(task)

    # --- attempts ---------------------------------------------------------

    def due(self, queue_name: str = "") -> list[DueDelivery]:
        """Return what could be delivered now, rates and concurrency aside."""
        with self.lock:
            now = self.clock.now()
            found: list[DueDelivery] = []
            for lane in self._lanes.values():
                if queue_name not in ("", lane.name):
                    continue
                extras = [DueDelivery(task.name, kind, now) for task, kind in lane.extras]
                tasks = [] if lane.is_paused else lane.due_tasks(now)
                found += extras + [DueDelivery(task.name, NORMAL, task.due_at) for task in tasks]
            return found

    def begin_attempt(self, name: str, kind: str = NORMAL) -> Attempt:
        """Begin one delivery by hand: of a waiting task, or of a due copy.

        Raises:
            Refused: NOT_FOUND: no such task, or no such copy is due.
        """
        with self._change():
            now = self.clock.now()
            if kind == NORMAL:
                lane, task = self._live_task(name)
                task.entry = None
                return self._begin(lane, task, NORMAL, now)
            lane = self._lane(queue_of_task(name))
            extra = next((e for e in lane.extras if (e[0].name, e[1]) == (name, kind)), None)
            if extra is None:
                raise refusals.entity_unknown()
            lane.extras.remove(extra)
            return self._begin(lane, extra[0], kind, now)

    def begin_ready(self, limit: int = 256) -> list[Attempt]:
        """Begin what every queue's state, rate and concurrency allow, up to limit a queue."""
        with self._change(is_news=False):
            now = self.clock.now()
            begun: list[Attempt] = []
            for lane in self._lanes.values():
                for _ in range(limit):
                    attempt = self._begin_next(lane, now)
                    if attempt is None:
                        break
                    begun.append(attempt)
            return begun

    def wake_at(self) -> float | None:
        """Return when begin_ready may have something, if nothing else happens."""
        with self.lock:
            now = self.clock.now()
            times = [lane.wake_at(now) for lane in self._lanes.values()]
            return min((at for at in times if at is not None), default=None)

    def _begin_next(self, lane: Lane, now: float) -> Attempt | None:
        while lane.extras:
            task, kind = lane.extras.popleft()
            if kind == DUPLICATE or task.state == LIVE:
                return self._begin(lane, task, kind, now)
        while lane.is_open(now):
            task_due = self._next_due(lane, now)
            if task_due is None:
                return None
            if self._holds_back(lane, task_due, now):
                continue
            lane.bucket.tokens -= 1.0
            return self._begin(lane, task_due, NORMAL, now)
        return None

    def _next_due(self, lane: Lane, now: float) -> TaskRecord | None:
        head = lane.head()
        if head is None or head.due_at > now:
            return None
        reorders = self.faults.fires("reorder", head) is not None
        return lane.pop_due(now, self.faults.pick if reorders else None)

    def _holds_back(self, lane: Lane, task: TaskRecord, now: float) -> bool:
        """Apply a delay fault, once to each attempt."""
        if task.due_at != task.schedule_at:
            return False
        rule = self.faults.fires("delay", task)
        if rule is None:
            return False
        task.due_at = now + (DEFAULT_DELAY_S if rule.param is None else rule.param)
        lane.push(task)
        self._store.update_task(task)
        return True

    def _begin(self, lane: Lane, task: TaskRecord, kind: str, now: float) -> Attempt:
        attempt = self._new_attempt(lane, task, kind, now)
        self._apply_faults(lane, attempt)
        self._running[attempt.id] = attempt
        lane.running += 1
        if not attempt.is_copy:
            self._count_dispatch(lane, task, now)
        self._store.insert_attempt(attempt)
        return attempt

    def _new_attempt(self, lane: Lane, task: TaskRecord, kind: str, now: float) -> Attempt:
        spec = messages.Task.FromString(task.spec)
        number = task.dispatch_count
        if kind in (DUPLICATE, OVERLAP):
            number = max(0, number - 1)
        request = build_request(task, spec, lane.queue, number, self.app, self.tokens)
        self._last_attempt_id += 1
        return Attempt(
            id=self._last_attempt_id,
            task=task,
            number=number,
            kind=kind,
            method=request.method,
            url=request.url,
            headers=request.headers,
            body=request.body,
            deadline_s=messages.seconds_of(spec.dispatch_deadline),
            follows_redirects=not task.is_app_engine,
            started_at=now,
            started_real=self.clock.real(),
            lane=lane,
        )

    def _apply_faults(self, lane: Lane, attempt: Attempt) -> None:
        """Mark the attempt with the faults that strike it."""
        task = attempt.task
        if task.due_at != task.schedule_at:
            attempt.faults.append("delay")
        if self.faults.fires("error", task):
            attempt.answers_500 = True
            attempt.faults.append("error")
        if rule := self.faults.fires("kill_worker", task):
            attempt.kills_worker = True
            attempt.kill_after_s = _DEFAULT_KILL_AFTER_S if rule.param is None else rule.param
            attempt.faults.append("kill_worker")
        if attempt.is_copy:
            attempt.faults.append(attempt.kind)
            return
        if self.faults.fires("lose_response", task):
            attempt.loses_response = True
            attempt.faults.append("lose_response")
        if self.faults.fires("overlap", task):
            lane.extras.append((task, OVERLAP))

    def _count_dispatch(self, lane: Lane, task: TaskRecord, now: float) -> None:
        before = phase_of(task)
        task.dispatch_count += 1
        task.running += 1
        lane.move(task, before)
        if task.first_attempt_at is None:
            task.first_attempt_at = now
        task.last_schedule_at, task.last_dispatch_at = task.schedule_at, now
        task.last_response_at = None
        self._store.update_task(task)

    def end_attempt(
        self,
        attempt_id: int,
        *,
        status: int | None = None,
        error: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Attempt | None:
        """Take the end of an attempt: the handler's answer, or the lack of one.

        Args:
            status: The HTTP status, None when no answer came.
            error: Why there was none, such as DEADLINE_EXCEEDED.

        Returns:
            The attempt, or None when a reset has forgotten it meanwhile.
        """
        with self._change():
            attempt = self._running.pop(attempt_id, None)
            if attempt is None:
                return None
            self._note_answer(attempt, status, error, headers or {}, body)
            attempt.lane.running -= 1
            if attempt.is_copy:
                self._end_copy(attempt)
            else:
                self._end_own(attempt)
            self._store.end_attempt(attempt)
            return attempt

    def _note_answer(
        self,
        attempt: Attempt,
        status: int | None,
        error: str | None,
        headers: Mapping[str, str],
        body: bytes,
    ) -> None:
        now = self.clock.now()
        attempt.duration_ms = (self.clock.real() - attempt.started_real) * 1000
        attempt.status = status
        attempt.error = error
        attempt.response_headers = dict(headers)
        attempt.response_body = body[:MAX_BODY_KEPT_BYTES]
        if attempt.loses_response and status is not None:
            attempt.error = "The response was lost (fault lose_response)."
            return
        if answers.presses_brake(attempt.task.is_app_engine, status):
            attempt.lane.brake.press(now, answers.retry_after_s(headers, now))

    def _end_copy(self, attempt: Attempt) -> None:
        """End a repeated delivery: only the success of an overlapping one counts."""
        if attempt.kind == OVERLAP and _succeeded(attempt) and attempt.task.state == LIVE:
            self._succeed(attempt.lane, attempt.task)

    def _end_own(self, attempt: Attempt) -> None:
        task, lane = attempt.task, attempt.lane
        before = phase_of(task)
        task.running -= 1
        self._count_answer(attempt)
        if task.state != LIVE:
            self._store.update_task(task)
            return
        lane.move(task, before)
        if _succeeded(attempt):
            self._succeed(lane, task)
        elif task.running:
            self._store.update_task(task)  # Another attempt of it will decide.
        else:
            self._fail(attempt)

    def _succeed(self, lane: Lane, task: TaskRecord) -> None:
        self._finish(lane, task, DONE)
        if self.faults.fires("duplicate", task):
            lane.extras.append((task, DUPLICATE))

    def _count_answer(self, attempt: Attempt) -> None:
        """Note what the next attempt's headers and the task's counters say of this one."""
        task, now = attempt.task, self.clock.now()
        status = attempt.status if attempt.error is None else None
        task.last_response_at = now
        task.last_code, task.last_message = answers.attempt_status(status, attempt.error)
        if status is not None:
            task.response_count += 1
        if _succeeded(attempt):
            return
        task.previous_status = answers.previous_response(task.is_app_engine, status, attempt.error)
        task.retry_reason = answers.retry_reason(task.is_app_engine, status)
        if status is not None and answers.counts_as_execution(task.is_app_engine, status):
            task.execution_count += 1

    def _fail(self, attempt: Attempt) -> None:
        """Schedule the retry of a failed task, or give it up."""
        task, lane, now = attempt.task, attempt.lane, self.clock.now()
        spec = messages.Task.FromString(task.spec)
        own = spec.retry_config if spec.HasField("retry_config") else None
        policy = policy_of(lane.queue.retry_config, own)
        first_at = task.first_attempt_at if task.first_attempt_at is not None else now
        if policy.gives_up(task.dispatch_count, now - first_at):
            self._finish(lane, task, FAILED)
            return
        delay_s = policy.delay_s(task.dispatch_count)
        if answers.presses_brake(task.is_app_engine, attempt.status):
            delay_s = max(delay_s, answers.retry_after_s(attempt.response_headers, now))
        base = attempt.started_at if attempt.kind == FORCED else now
        task.schedule_at = task.due_at = attempt.next_retry_at = base + delay_s
        lane.push(task)
        self._store.update_task(task)

    def _finish(self, lane: Lane, task: TaskRecord, state: str) -> None:
        """End a live task; its name stays blocked for a while."""
        now = self.clock.now()
        lane.remove(task, phase_of(task))
        task.state, task.ended_at = state, now
        if task.is_named:
            self._store.put_tombstone(task.name, now + self._tombstone_s(lane))
        self._store.update_task(task)
        self._ended_since_prune += 1
        if self._ended_since_prune >= _PRUNE_EVERY:
            self._prune(now)

    def _tombstone_s(self, lane: Lane) -> float:
        kept = self.retention
        return kept.yaml_tombstone_s if lane.from_yaml else kept.tombstone_s

    def _prune(self, now: float) -> None:
        self._ended_since_prune = 0
        self._store.prune(self.retention.ended_tasks, now, now - self.retention.operation_s)

    # --- the emulator's own windows ---------------------------------------

    def is_idle(
        self, queue_name: str = "", *, with_scheduled: bool = False, with_retrying: bool = True
    ) -> bool:
        """Return whether nothing runs or is due, and (unless told else) nothing retries.

        Args:
            with_scheduled: A task with a later ETA counts as work, too.
            with_retrying: A task between two attempts counts as work.
        """
        with self.lock:
            now = self.clock.now()
            wanted = [lane for lane in self._lanes.values() if queue_name in ("", lane.name)]
            return all(
                lane.is_idle(now, with_scheduled=with_scheduled, with_retrying=with_retrying)
                for lane in wanted
            )

    def advance(self, seconds: float) -> float:
        """Move the clock forward and return the new time."""
        with self._change():
            self.clock.advance(seconds)
            self._store.set_meta("clock_offset_s", self.clock.offset_s)
            self.sweep()
            return self.clock.now()

    def sweep(self) -> None:
        """Drop tasks past their retention, and names and operations that expired."""
        with self._change():
            now = self.clock.now()
            for lane in self._lanes.values():
                kept = self.retention
                limit_s = kept.yaml_task_s if lane.from_yaml else kept.task_s
                for task in _created_before(lane.tasks.values(), now - limit_s):
                    self._finish(lane, task, DELETED)
            self._prune(now)

    def reset(self, queue_name: str = "") -> None:
        """Forget tasks, attempts and names: all of them, or one queue's.

        Queues stay, resumed unless their rate is 0. A full reset also takes the
        faults out and puts the clock back.

        Raises:
            Refused: NOT_FOUND: no such queue.
        """
        with self._change():
            chosen = [self._lane(queue_name)] if queue_name else list(self._lanes.values())
            self._store.clear(queue_name)
            for lane in chosen:
                self._running = {
                    key: attempt
                    for key, attempt in self._running.items()
                    if attempt.lane is not lane
                }
                self._restart(lane)
            if not queue_name:
                self.faults.clear()
                self.clock.offset_s = 0.0
                self._store.set_meta("clock_offset_s", 0.0)
        for listener in self.reset_listeners:
            listener()

    def _restart(self, lane: Lane) -> None:
        lane.queue.ClearField("purge_time")
        has_rate = lane.queue.rate_limits.max_dispatches_per_second > 0
        lane.queue.state = messages.RUNNING if has_rate else messages.PAUSED
        fresh = Lane(lane.queue, lane.from_yaml, self.clock.now())
        self._lanes[lane.name] = fresh
        self._save_queue(fresh)

    def is_running(self, attempt_id: int) -> bool:
        """Return whether an attempt has begun and not ended (nor been reset away)."""
        with self.lock:
            return attempt_id in self._running

    def state_of(self, task: TaskRecord) -> str:
        """Return a task's state in words for people."""
        if task.state != LIVE:
            return task.state
        phase = phase_of(task)
        if phase != lanes.WAITING:
            return phase
        return "scheduled" if task.due_at > self.clock.now() else "queued"

    def counts(self) -> dict[str, Counter[str]]:
        """Return how many tasks are in each state, by queue; ended ones as far as kept."""
        with self.lock:
            counts = {
                name: Counter(self.state_of(task) for task in lane.tasks.values())
                for name, lane in self._lanes.items()
            }
            for (queue, state), count in self._store.ended_counts().items():
                if queue in counts:
                    counts[queue][state] += count
            return counts

    def lanes(self) -> list[Lane]:
        """Return the queues at work, by name."""
        with self.lock:
            return [lane for _, lane in sorted(self._lanes.items())]

    def recent_tasks(
        self, queue_name: str = "", state: str = "", before: int = 0, limit: int = 50
    ) -> list[TaskRecord]:
        """Return tasks of any state, newest first, with a sequence below before."""
        with self.lock:
            below = before or self._last_sequence + 1
            if state in ("", DONE, FAILED, DELETED):
                stored = self._store.tasks_before(below, limit, queue_name, state)
                return [self._in_memory(task) for task in stored]
            found: list[TaskRecord] = []
            for lane in self._lanes.values():
                if queue_name in ("", lane.name):
                    found += [
                        task
                        for task in lane.tasks.values()
                        if task.sequence < below and self.state_of(task) == state
                    ]
            return sorted(found, key=lambda task: -task.sequence)[:limit]

    def _in_memory(self, task: TaskRecord) -> TaskRecord:
        """Return the live object of a task, which also knows what is running."""
        lane = self._lanes.get(task.queue)
        return lane.tasks.get(task.name, task) if lane else task

    def task_history(self, name: str) -> tuple[TaskRecord, list[Any]]:
        """Return a task of any state with the rows of its attempts.

        Raises:
            Refused: NOT_FOUND.
        """
        with self.lock:
            task = self._store.task_by_name(name)
            if task is None:
                raise refusals.entity_unknown()
            return self._in_memory(task), self._store.attempts(task.sequence)

    # --- what is kept for others ------------------------------------------

    def kept_operation(self, name: str) -> bytes | None:
        """Return a serialized long-running operation."""
        with self.lock:
            return self._store.operation(name)

    def kept_operations(self) -> list[bytes]:
        """Return all serialized long-running operations."""
        with self.lock:
            return self._store.operations()

    def keep_operation(self, name: str, message: bytes) -> None:
        """Keep a serialized long-running operation."""
        with self._change():
            self._store.put_operation(name, self.clock.now(), message)

    def drop_operation(self, name: str) -> None:
        """Forget a long-running operation."""
        with self._change():
            self._store.delete_operation(name)

    def kept(self, key: str) -> Any:
        """Return a small value kept with the store, or None."""
        with self.lock:
            return self._store.meta(key)

    def keep(self, key: str, value: Any) -> None:
        """Keep a small value with the store."""
        with self._change():
            self._store.set_meta(key, value)


def _record(message: Any, queue: str, sequence: int, schedule_at: float, now: float) -> TaskRecord:
    is_app_engine = message.HasField("app_engine_http_request")
    if is_app_engine:
        path = message.app_engine_http_request.relative_uri
    else:
        parts = urlsplit(message.http_request.url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return TaskRecord(
        sequence=sequence,
        name=message.name,
        queue=queue,
        path=path,
        is_app_engine=is_app_engine,
        is_named=False,
        spec=message.SerializeToString(),
        created_at=now,
        schedule_at=schedule_at,
        due_at=schedule_at,
    )


def _shown(task: TaskRecord, message: Any, view: int) -> Any:
    """Return a task's message as a view shows it; message is its parsed spec."""
    if view != messages.FULL:
        kind = message.WhichOneof("message_type")
        getattr(message, kind).ClearField("body")
    message.view = messages.FULL if view == messages.FULL else messages.BASIC
    messages.set_seconds(message.schedule_time, task.schedule_at)
    message.dispatch_count = task.dispatch_count
    message.response_count = task.response_count
    if task.first_attempt_at is not None:
        messages.set_seconds(message.first_attempt.dispatch_time, task.first_attempt_at)
        _show_last_attempt(task, message.last_attempt)
    return message


def _show_last_attempt(task: TaskRecord, shown: Any) -> None:
    messages.set_seconds(shown.schedule_time, task.last_schedule_at or 0.0)
    messages.set_seconds(shown.dispatch_time, task.last_dispatch_at or 0.0)
    if task.last_response_at is not None:
        messages.set_seconds(shown.response_time, task.last_response_at)
        shown.response_status.code = task.last_code
        shown.response_status.message = task.last_message


def _succeeded(attempt: Attempt) -> bool:
    return attempt.error is None and attempt.status is not None and 200 <= attempt.status <= 299


def _first_after(tasks: Iterable[TaskRecord], sequence: int, limit: int) -> list[TaskRecord]:
    """Return the first tasks with a higher sequence, in order of sequence."""
    found = [task for task in tasks if task.sequence > sequence]
    return sorted(found, key=lambda task: task.sequence)[:limit]


def _created_before(tasks: Iterable[TaskRecord], before: float) -> list[TaskRecord]:
    return [task for task in tasks if task.created_at < before]
