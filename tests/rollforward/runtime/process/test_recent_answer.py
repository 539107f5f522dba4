"""Answers that callers share: asked once in a while, and for all."""

from __future__ import annotations

import threading

import pytest

from rollforward.runtime.process.recent_answer import RecentAnswer
from rollforward.testing.world import in_threads

pytestmark = pytest.mark.fast


class Question:
    """A question whose answer is the number of times that it was asked."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked_at_s: list[float] = []
        self.recent = RecentAnswer[int](lambda: self.now_s)

    def ask(self) -> int:
        self.asked_at_s.append(self.now_s)
        return len(self.asked_at_s)

    def get(self) -> int:
        return self.recent.get(self.ask, 1.0)


def test_a_question_is_asked_once_a_second() -> None:
    question, answers = Question(), list[int]()

    for question.now_s in (100.0, 100.9, 101.0, 101.5, 102.2):
        answers.append(question.get())

    assert question.asked_at_s == [100.0, 101.0, 102.2]
    assert answers == [1, 1, 2, 2, 3]


def test_no_caller_waits_while_another_one_asks_again() -> None:
    """A service that does not answer takes seconds to ask; the answer of before is there."""
    question, answers = Question(), list[int]()
    question.get()
    question.now_s = 102.0

    def ask() -> int:
        in_threads(lambda: answers.append(question.get()))
        return question.ask()

    assert question.recent.get(ask, 1.0) == 2
    assert answers == [1]


def test_first_callers_wait_for_one_answer() -> None:
    question, is_asking, go_on = Question(), threading.Event(), threading.Event()
    answers: list[int] = []

    def ask() -> int:
        is_asking.set()
        assert go_on.wait(10)
        return question.ask()

    def get() -> None:
        answers.append(question.recent.get(ask, 1.0))

    threads = [threading.Thread(target=get, daemon=True) for _ in range(3)]
    threads[0].start()
    assert is_asking.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(10)

    assert answers == [1, 1, 1]


def test_a_change_lets_the_next_caller_ask() -> None:
    question = Question()
    question.get()
    question.recent.forget()
    assert question.get() == 2


def test_an_answer_from_before_a_change_is_not_kept() -> None:
    question = Question()

    def ask() -> int:
        question.recent.forget()
        return question.ask()

    assert question.recent.get(ask, 1.0) == 1
    assert question.get() == 2


def test_a_question_that_fails_is_asked_by_the_next_caller() -> None:
    question = Question()

    def fail() -> int:
        raise ValueError("it is away")

    with pytest.raises(ValueError, match="it is away"):
        question.recent.get(fail, 1.0)
    assert question.get() == 1
