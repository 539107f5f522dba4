"""Chaos on the real stack, for a few rounds; and whether the command would notice a loss."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import datastore

from benchmarks.chaos import command
from benchmarks.chaos import loads as chaos_loads
from benchmarks.chaos.faults import ALONE, FAULTS, PAIR_EVERY, rounds
from benchmarks.chaos.short_answers import SwitchedAnswers
from benchmarks.chaos.stage import staged
from benchmarks.harness import proxies
from benchmarks.harness.proxies import Proxy, Trouble, proxy_before
from benchmarks.healing import benchmark, loads
from benchmarks.healing.benchmark import Scene
from benchmarks.healing.loads import GUESTS, Account
from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.local.services.standalone import datastore_emulator
from tests.infra.runs.sampling import SEED, minute

SHORT_S = 15.0
ROWS = 12


@minute
@pytest.mark.process
@pytest.mark.timeout(480)
def test_all_is_exact_after_faults_drawn_by_the_day() -> None:
    """Nothing that a pattern accepted is lost, doubled or left."""
    with staged("firestore", SEED) as stage:
        report = command.play(stage, SHORT_S, SEED, tuple(FAULTS))

    assert all(account.accepted for account in report.accounts.values())
    assert report.is_exact, "\n".join(report.lines())


class _Stack:
    def __init__(self) -> None:
        self.cron = threading.Event()

    def rest_cron(self) -> None:
        self.cron.clear()

    def wake_cron(self) -> None:
        self.cron.set()


class _Loads:
    """Loads of which one pattern lost an item, and is looked at until cron sweeps."""

    def __init__(self, stack: _Stack, *given: Any) -> None:
        self.stack = stack

    def open(self) -> None:
        pass

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        yield

    def until_exact(self, began: float) -> Mapping[str, float]:
        assert self.stack.cron.wait(20)
        return {"sums": 0.1, "clicks": 180.0}

    def look_again(self) -> None:
        pass

    def accounts(self) -> Mapping[str, Account]:
        return {"sums": Account(3, 3), "clicks": Account(1_200, 1_199)}


class _Stage:
    def __init__(self) -> None:
        self.stack = _Stack()
        self.struck = 0

    def kill(self, most: int) -> None:
        self.struck += most


def test_a_loss_is_told_and_ends_the_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code, and the pattern that did not heal although cron swept."""
    stage = _Stage()
    monkeypatch.setattr(command, "SWEPT_AFTER_S", 0.0)
    monkeypatch.setattr(chaos_loads, "AllLoads", _Loads)
    monkeypatch.setattr(command, "WRITE_S", 0.0)
    monkeypatch.setattr(command, "staged", lambda *given: contextlib.nullcontext(stage))

    code = command.main(["--faults", "killed worker", "--seconds", "3600"])

    told, said = capsys.readouterr()
    assert (code, stage.struck) == (1, 1)
    assert "clicks           1,200     1,199        0      1" in told
    assert "over 0 s: clicks" in told
    assert told.endswith("seed 0: NOT EXACT\n")
    assert "killed worker: NOT exact after 180.0 s, clicks last" in said


def test_no_faults_are_no_choice() -> None:
    """Rounds without a fault would never come to one."""
    with pytest.raises(SystemExit):
        command.main(["--faults"])


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


# --- what the accounts see ----------------------------------------------------

NONE: Any = SimpleNamespace()  # No stack, no clients.


@dataclass
class _Run:
    """The progress of a send."""

    state: str = FINISHED
    done: int = GUESTS
    skipped: int = 0
    failed: int = 0

    @property
    def totals(self) -> _Run:
        return self


def test_sends_that_the_party_has_forgotten_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the last ones; those before were seen done."""
    mails, kept = loads.Mails(NONE, NONE), 3
    monkeypatch.setattr(loads, "progress", lambda run: _Run())
    for mails.sends in range(1, 2 * kept + 1):
        runs = range(max(0, mails.sends - kept), mails.sends)
        party = SimpleNamespace(sends=[{"run_id": str(run)} for run in runs])
        monkeypatch.setattr(loads, "party_of", lambda _, party=party: party)
        assert mails.account().is_exact

    mails.sends += 1
    assert mails.account().lost == 1


@pytest.mark.parametrize(
    ("run", "is_done"),
    [
        (_Run(), True),
        (_Run(done=GUESTS - 2, skipped=2), True),
        (_Run(done=GUESTS - 1), False),
        (_Run(done=GUESTS - 1, failed=1), False),
        (_Run(state=RUNNING), False),
        (_Run(state="cancelled"), False),
    ],
)
def test_a_send_is_done_when_all_guests_are_told(
    monkeypatch: pytest.MonkeyPatch, run: _Run, is_done: bool
) -> None:
    """Not as soon as its run has ended."""
    mails = loads.Mails(NONE, NONE)
    mails.sends = 1
    monkeypatch.setattr(loads, "progress", lambda _: run)
    monkeypatch.setattr(loads, "party_of", lambda _: SimpleNamespace(sends=[{"run_id": "a"}]))

    assert mails.account().is_exact == is_done


def test_a_lost_click_and_a_doubled_one_do_not_cancel_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts differ, and both counters of a click are looked at."""
    clicks, is_over, amounts = loads.Clicks(NONE, NONE), threading.Event(), list[int]()

    def send(page: str, path: str, form: Mapping[str, str]) -> None:
        amounts.append(int(form["amount"]))
        if len(amounts) == 30:
            is_over.set()

    monkeypatch.setattr(loads, "CLICK_EVERY_S", 0.0)
    monkeypatch.setattr(clicks.visitor, "send", send)
    clicks.write(is_over)
    assert len(set(amounts)) > 1

    for key, forms in itertools.product((-1, 0, 1), repeat=2):
        totals = {loads.KEY: sum(amounts) + key, loads.FORMS: sum(amounts) + forms}
        counter = SimpleNamespace(total=lambda _, key, of=totals: SimpleNamespace(value=of[key]))
        monkeypatch.setattr(loads, "SHARDED", counter)
        account = clicks.account()
        assert (account.lost, account.doubled) == (int(-1 in (key, forms)), int(1 in (key, forms)))


def _newest(*ids: str) -> Any:
    """Return a function that returns a query for rows."""
    rows = [SimpleNamespace(key=SimpleNamespace(id=lambda id=id: id)) for id in ids]
    return lambda: SimpleNamespace(fetch=lambda limit: rows)


def test_sales_that_were_exact_are_judged_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they are kept: the bank may have charged again since."""
    sale = SimpleNamespace(is_over=True, adds_up=True, ended=6, bank=SimpleNamespace(twice=1))
    row = SimpleNamespace(get=lambda: True)
    monkeypatch.setattr(chaos_loads, "sale_key", lambda _: row)
    monkeypatch.setattr(chaos_loads, "progress_of_sale", lambda *_: sale)
    monkeypatch.setattr(chaos_loads, "newest_sales", _newest("kept"))
    orders = chaos_loads.Orders(NONE, NONE)
    orders.asked, orders.open_sales = 12, ["gone", "kept"]
    assert orders.account().is_exact

    orders.look_again()
    assert orders.account().is_exact

    sale.adds_up = False
    orders.look_again()
    account = orders.account()
    assert (account.lost, account.doubled) == (6, 1)


def test_rushes_that_were_done_are_judged_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they are kept: a note may be missing since."""
    rush = SimpleNamespace(is_over=True, done=50)
    row = SimpleNamespace(get=lambda: True)
    monkeypatch.setattr(chaos_loads, "rush_key", lambda _: row)
    monkeypatch.setattr(chaos_loads, "progress_of_rush", lambda *_: rush)
    monkeypatch.setattr(chaos_loads, "newest_rushes", _newest("kept"))
    tenants = chaos_loads.Tenants(NONE, NONE)
    tenants.asked, tenants.open_rushes = 100, ["gone", "kept"]
    assert tenants.account().is_exact

    rush.done = 49
    tenants.look_again()
    assert tenants.account().lost == 1


# --- faults -------------------------------------------------------------------


def test_two_troubles_at_once_do_not_end_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer one goes on when the other one has ended."""
    channel = SimpleNamespace(unary_unary=lambda method: lambda request, timeout: b"done")
    proxy, was_refused = Proxy(channel), list[bool]()

    def ask() -> None:
        context = SimpleNamespace(abort=lambda *_: was_refused.append(True))
        handler = proxy.service(SimpleNamespace(method="/a.B/C"))
        if handler.unary_unary(b"", context) == b"done":
            was_refused.append(False)

    def sleep(seconds: float) -> None:
        if seconds > 1:
            proxy.trouble(Trouble(proxies.twice, method="/a.B/D"), 1)
        ask()

    monkeypatch.setattr(proxies, "time", SimpleNamespace(sleep=sleep))
    proxy.trouble(Trouble(proxies.away), 2)
    ask()

    assert was_refused == [True, True, False]


def test_a_fault_without_a_victim_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not pass for one that did no harm."""
    scene = Scene(NONE)
    monkeypatch.setattr(benchmark, "VICTIM_WITHIN_S", 0.0)
    monkeypatch.setattr(Scene, "_children", lambda _: [])

    with pytest.raises(AssertionError, match="no memcached to stop"):
        scene.stop("memcached", 0.0)
    with pytest.raises(AssertionError, match="no worker to kill"):
        scene.kill(8)


def test_a_kill_waits_for_the_worker_that_replaces_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kills may come at once."""
    killed = list[int]()
    worker = SimpleNamespace(kill=lambda: killed.append(1))
    found = iter([[], [worker, worker]])
    monkeypatch.setattr(Scene, "_workers", lambda _: next(found))

    Scene(NONE).kill(1)

    assert killed == [1]
