"""Records of the accepted writes, which the totals must match."""

from __future__ import annotations

import contextlib
import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from functools import partial

import requests

from benchmarks.harness.dev_server import Stack

SUM = "books"
GIVE_UP_S = 180.0
LOOK_EVERY_S = 0.2
BAR = re.compile(
    r'<tr><th scope="row">(\d+)</th><td class="n">(\d+)</td><td class="n">[\d.–]+</td>'
)
TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')


@dataclass(frozen=True)
class Writers:
    """The number of writers of each kind: of the API, of the form of sums, of the form of students.

    Each pauses between two writes.
    """

    amounts: int = 4
    forms: int = 0
    students: int = 2
    pause_s: float = 0.0


@dataclass(frozen=True)
class Student:
    """A student who was accepted, and when by time.time()."""

    id: str
    grade: int
    accepted_s: float


class Books:
    """A record of the accepted writes, and the writers that make them."""

    def __init__(self, stack: Stack, writers: Writers = Writers()) -> None:
        self.stack = stack
        self.amount = self.items = 0
        self.students: list[Student] = []
        self._writers = writers
        self._lock = threading.Lock()
        self._has_ended = threading.Event()

    def open(self) -> None:
        """Create the sum; the school exists already."""
        self.send_form(requests.Session(), "/sums", "/sums", {"name": SUM})

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run the writers during the block; on exit every write that began has been accepted."""
        self._has_ended.clear()
        work = [
            *[self._add_up] * self._writers.amounts,
            *[self._add_by_form] * self._writers.forms,
            *[self._add_students] * self._writers.students,
        ]
        with futures.ThreadPoolExecutor(len(work)) as threads:
            writers = [threads.submit(write) for write in work]
            try:
                yield
            finally:
                self._has_ended.set()
            for writer in writers:
                writer.result()

    def until_exact(self, began: float = 0.0) -> dict[str, float]:
        """Return the seconds from `began`, or now, until each total matches the accepted writes.

        Raises:
            AssertionError: a total does not match within GIVE_UP_S.
        """
        looks = {"sum": self.sum_is_exact, "bars": self.bars_are_exact}
        began = began or time.monotonic()
        exact_s: dict[str, float] = {}
        while len(exact_s) < len(looks):
            for name in looks.keys() - exact_s.keys():
                if looks[name]():
                    exact_s[name] = round(time.monotonic() - began, 1)
            if time.monotonic() - began > GIVE_UP_S:
                raise AssertionError(f"not exact after {GIVE_UP_S:.0f} s; exact were {exact_s}")
            time.sleep(LOOK_EVERY_S)
        return exact_s

    def bars(self) -> Counter[int]:
        """Return the view's count of students by grade, or nothing if the page is unavailable."""
        answer = self._get("/grades?more=table")
        rows = BAR.findall(answer.text) if answer else []
        return Counter({int(grade): int(count) for grade, count in rows if int(count)})

    def totals(self) -> tuple[int, int]:
        """Return total and number of items from the API, or -1 for both if it does not answer."""
        answer = self._get(f"/api/v1/sums/{SUM}")
        if answer is None:
            return -1, -1
        body = answer.json()
        return body["total"], body["items"]

    def sum_is_exact(self) -> bool:
        """Return whether the sum matches the accepted writes."""
        return self.totals() == (self.amount, self.items)

    def bars_are_exact(self) -> bool:
        """Return whether the view counts the students who were accepted."""
        return self.bars() == Counter(student.grade for student in self.students)

    def _get(self, path: str) -> requests.Response | None:
        with contextlib.suppress(requests.RequestException):
            answer = requests.get(self.stack.where["app"] + path, timeout=30)
            if answer.status_code == 200:
                return answer
        return None

    def _add_up(self) -> None:
        session = requests.Session()
        while not self._has_ended.is_set():
            amount, key = random.randint(-1000, 1000), secrets.token_hex(16)
            until_accepted(partial(self._send_amount, session, amount, key), {202})
            self._note(amount)

    def _add_by_form(self) -> None:
        session = requests.Session()
        page = f"/sums/{SUM}"
        while not self._has_ended.is_set():
            amount = random.randint(-1000, 1000)
            form = {"id": secrets.token_hex(16), "amount": str(amount)}
            self.send_form(session, page, f"{page}/additions", form)
            self._note(amount)

    def _note(self, amount: int) -> None:
        with self._lock:
            self.amount += amount
            self.items += 1
        self._has_ended.wait(self._writers.pause_s)

    def _send_amount(self, session: requests.Session, amount: int, key: str) -> requests.Response:
        url = f"{self.stack.where['app']}/api/v1/sums/{SUM}"
        headers = {"Idempotency-Key": key}
        return session.post(url, json={"amount": amount}, headers=headers, timeout=30)

    def _add_students(self) -> None:
        session = requests.Session()
        while not self._has_ended.is_set():
            grade, id_ = random.randint(1, 12), secrets.token_hex(16)
            form = {"id": id_, "name": "Ada", "grade": str(grade), "points": "50"}
            self.send_form(session, "/grades", "/grades/students", form)
            with self._lock:
                self.students.append(Student(id_, grade, time.time()))
            self._has_ended.wait(self._writers.pause_s)

    def send_form(
        self, session: requests.Session, page: str, path: str, form: dict[str, str]
    ) -> None:
        """Send a form of a page until it is accepted."""

        def send() -> requests.Response:
            shown = session.get(self.stack.where["app"] + page, timeout=30).text
            token = TOKEN.search(shown)
            sent = {**form, "csrf_token": token.group(1) if token else ""}
            url = self.stack.where["app"] + path
            return session.post(url, data=sent, timeout=30, allow_redirects=False)

        until_accepted(send, {303})


def until_accepted(send: Callable[[], requests.Response], accepted: set[int]) -> None:
    """Repeat a request until its answer has an accepted status."""

    def is_accepted() -> bool:
        with contextlib.suppress(requests.RequestException):
            return send().status_code in accepted
        return False

    until(is_accepted, "not accepted")


def until(is_so: Callable[[], bool], complaint: str, within_s: float = GIVE_UP_S) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    ends_at = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > ends_at:
            raise AssertionError(f"{complaint} within {within_s:.0f} s")
        time.sleep(LOOK_EVERY_S)
