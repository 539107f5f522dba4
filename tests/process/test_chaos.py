"""Chaos on the real stack, for a few rounds; and whether the command would notice a loss."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.cloud import datastore

from benchmarks.chaos import command
from benchmarks.chaos.faults import ALONE, FAULTS, PAIR_EVERY, rounds
from benchmarks.chaos.short_answers import SwitchedAnswers
from benchmarks.chaos.stage import staged
from benchmarks.harness.proxies import proxy_before
from benchmarks.healing.loads import Account
from rollforward.local.services.standalone import datastore_emulator
from tests.infra.runs.sampling import SEED

SHORT_S = 15.0
ROWS = 12


@pytest.mark.process
@pytest.mark.timeout(480)
def test_all_is_exact_after_faults_drawn_by_the_day() -> None:
    """Nothing that a pattern accepted is lost, doubled or left."""
    with staged("firestore", SEED) as stage:
        report = command.play(stage, SHORT_S, SEED, tuple(FAULTS))

    assert all(account.accepted for account in report.accounts.values())
    assert report.is_exact, "\n".join(report.lines())


class _Loads:
    """Loads of which one pattern lost an item."""

    def __init__(self, *given: Any) -> None:
        self.rounds = 0

    def open(self) -> None:
        pass

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        yield

    def until_exact(self, began: float) -> Mapping[str, float]:
        return {"sums": 0.1, "clicks": 180.0}

    def accounts(self) -> Mapping[str, Account]:
        return {"sums": Account(3, 3), "clicks": Account(1_200, 1_199)}


class _Stack:
    def rest_cron(self) -> None:
        pass


class _Stage:
    stack = _Stack()
    struck = 0

    def kill(self, most: int) -> None:
        self.struck += most


def test_a_loss_is_told_and_ends_the_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code, and the pattern that did not heal."""
    stage = _Stage()
    monkeypatch.setattr(command, "AllLoads", _Loads)
    monkeypatch.setattr(command, "WRITE_S", 0.0)
    monkeypatch.setattr(command, "staged", lambda *given: contextlib.nullcontext(stage))

    code = command.main(["--faults", "killed worker", "--seconds", "3600"])

    told = capsys.readouterr().out
    assert (code, stage.struck) == (1, 1)
    assert "clicks           1,200     1,199        0      1" in told
    assert "over 10 s: clicks" in told
    assert told.endswith("seed 0: NOT EXACT\n")


@pytest.mark.parametrize(
    ("account", "is_exact"),
    [
        (Account.counted(5, 5), True),
        (Account.counted(5, 4), False),
        (Account.counted(5, 6), False),
        (Account(5, 5, is_still=False), False),
    ],
)
def test_an_account_is_exact_only_if_all_is_done_once(account: Account, is_exact: bool) -> None:
    """And nothing moves any more."""
    assert account.is_exact == is_exact


def test_each_kind_strikes_as_often_as_the_others() -> None:
    """By a seed; each third round has two kinds, if both can strike at once."""
    two_bags = list(itertools.islice(rounds(7), 2 * len(FAULTS)))

    assert Counter(first for first, *_ in two_bags) == dict.fromkeys(FAULTS, 2)
    assert two_bags == list(itertools.islice(rounds(7), len(two_bags)))
    assert two_bags != list(itertools.islice(rounds(8), len(two_bags)))
    pairs = [faults for faults in two_bags if len(faults) > 1]
    assert len(two_bags) // PAIR_EVERY - 2 * len(ALONE) <= len(pairs) <= len(two_bags) // PAIR_EVERY
    assert not any(name in ALONE for faults in pairs for name in faults)


def test_answers_are_cut_short_for_a_while_and_lose_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cursor of a cut answer works when answers are whole again."""
    answers = SwitchedAnswers(random.Random(1))
    with datastore_emulator("firestore") as real, proxy_before(real, ask=answers.ask_by) as proxy:
        monkeypatch.setenv("DATASTORE_EMULATOR_HOST", proxy.address)
        client = datastore.Client("demo-chaos")
        keys = [client.key("ChaosRow", number + 1) for number in range(ROWS)]
        client.put_multi([datastore.Entity(key) for key in keys])

        answers.is_on = True
        found = [row.key.id for row in client.query(kind="ChaosRow").fetch()]
        looked_up = client.get_multi(keys)
        cut = answers.cut + answers.empty
        begun = iter(client.query(kind="ChaosRow").fetch())
        first = next(begun)
        answers.is_on = False
        rest = list(begun)

    assert sorted(found) == [key.id for key in keys]
    assert len(looked_up) == ROWS
    assert answers.deferred
    assert cut
    assert first.key.id == 1
    assert [row.key.id for row in rest] == [key.id for key in keys[1:]]
