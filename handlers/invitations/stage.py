"""The stage of a party: its last send, guest by guest, and the incidents of its deliveries."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage, render
from handlers.shared.formatting import number, plural
from handlers.shared.held_boxes import HeldBoxes
from handlers.shared.incidents import Delivery, hits_of, mails_sent_again
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from models.invitations import Party
from pipelines.invitations.send_progress import SendProgress
from rollforward.continuations.entities import RUNNING, WAITING
from rollforward.continuations.progress import RunProgress
from rollforward.runtime import Cost

TASKS = "/tasks/continuations/tell-guests"
# A struck page comes back within a lease of 6 s and a retry's wait, mostly much sooner.
STRUCK_S = 4.0
# The first mails say nothing of the rate: workers still open their connections.
EARLY_S, EARLY_SHARE = 5.0, 0.05
# Of the first few mails, an average would say nothing.
ENOUGH = 50


@dataclass(frozen=True)
class PartyStage(DemoStage):
    """The last send of a party; None: there was none."""

    party: Party
    send: SendProgress | None
    sent_again: int | None  # None: nobody knows.

    path = TASKS

    @property
    def text(self) -> str:
        run_id = self.send.latest.run_id if self.send and self.began else self.party.key.id()
        return str(run_id)

    @property
    def began(self) -> datetime.datetime | None:
        return self.send.latest.started if self.send else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.send is not None
        run = self.send.latest
        is_cancelled = run.state == "cancelled"
        return Timeline(
            started,
            run.elapsed_s,
            is_over=run.state != RUNNING,
            end="cancelled" if is_cancelled else "sent",
            is_complete=not is_cancelled,
        )

    def name(self, delivery: Delivery) -> str:
        """Return the name of a page: its chain and its number in it, from 1."""
        body = delivery.body or {}
        try:
            return f"page {int(body['chain']) + 1}.{int(body['number']) + 1}"
        except (KeyError, TypeError, ValueError):
            return delivery.task[:12]

    def closing(self, stage: Stage) -> str:
        assert self.send is not None
        parts = [f"{plural(self.send.sent, 'mail')} sent", *suffered(stage)]
        if self.send.counts["failed"]:
            parts.append(f"{number(self.send.counts['failed'])} refused")
        parts += books_of(self.send, self.sent_again).words
        if self.send.in_doubt and self.sent_again is None:
            parts.append(f"at most {number(self.send.in_doubt)} mailed twice")
        return ", ".join(parts)

    def balance(self) -> Balance | None:
        return books_of(self.send, self.sent_again) if self.send else None

    def cost(self) -> list[Cell]:
        return _cost(self.send, self.sent_again) if self.send and self.began else []


def books_of(send: SendProgress, sent_again: int | None) -> Balance:
    """Return the books of a send: its guests, and the mails that its tasks have noted.

    Args:
        sent_again: Mails that the local mail server got twice; None: unknown.
    """
    counts, state = send.counts, send.latest.state
    to_go = counts["waiting"] + counts["retrying"]
    # The pages of a run that is over have a receipt of each guest.
    accepted = send.guests - counts["failed"] - (0 if state == "finished" else to_go)
    return Balance(
        is_moving=state == RUNNING,
        asked=send.guests,
        made_count=accepted,
        refused=counts["failed"],
        found_count=counts["done"] + counts["skipped"],
        doubled=sent_again or 0,
    )


def party_stage(party: Party, send: SendProgress | None, now: datetime.datetime) -> Stage:
    """Return the stage of a party's last send."""
    return render(PartyStage(party, send, _sent_again(party, send)), now)


def waiting_canvas(guests: int, page_size: int) -> dict[str, Any]:
    """Return the canvas before the first send: a dot for each guest, or for a sample list."""
    return {"run": "", "chains": 1, "size": page_size, "waiting": guests, "boxes": [], "hits": {}}


def time_left(run: RunProgress, stage: Stage) -> float | None:
    """Estimate the seconds until the end of a run; None without enough evidence.

    While something strikes, a page may always have to wait for a lease and a retry.
    """
    is_early = run.elapsed_s < EARLY_S and run.totals.ended < EARLY_SHARE * run.expected
    if run.left_s is None or is_early:
        return None
    is_struck = bool(stage.switches or stage.kills or stage.repaired < stage.hit)
    return max(run.left_s, STRUCK_S) if is_struck else run.left_s


def canvas_of(
    run: RunProgress, deliveries: Sequence[Delivery], held: HeldBoxes | None = None
) -> dict[str, Any]:
    """Return the canvas: a box for each page with a letter for each mail, and the hits.

    A run whose pages are gone, or not there yet, is drawn by its counts. A script that holds boxes
    of the run gets the others.
    """
    hits = hits_of(deliveries, _page_of)
    is_partial = held is not None and held.run_id == run.run_id
    boxes = [
        [page.chain, page.number, packed(page.letters), page.done]
        for page in run.pages
        if not (held is not None and is_partial and page.done and page in held)
    ]
    if not run.pages and run.totals.ended:
        boxes = [[0, 0, _letters_of(run), True]]
    size = max([len(page.letters) for page in run.pages], default=0)
    known = sum(len(page.letters) for page in run.pages) if run.pages else run.totals.known
    return {
        "run": run.run_id,
        "chains": run.chains,
        "size": size or min(100, run.expected),
        "expected": run.expected,
        "waiting": max(0, run.expected - known),
        "boxes": boxes,
        "hits": {page: page_hits.count for page, page_hits in hits.items()},
        "is_partial": is_partial and bool(run.pages),
    }


def _page_of(delivery: Delivery) -> str | None:
    body = delivery.body or {}
    return f"{body['chain']}:{body['number']}" if "chain" in body and "number" in body else None


@functools.lru_cache(maxsize=256)  # Most pages have the same.
def packed(letters: str) -> str:
    """Return letters with their counts in place of repeats.

    >>> packed("ddd..r")
    '3d2.1r'
    """
    return "".join(f"{len(list(same))}{letter}" for letter, same in itertools.groupby(letters))


def _letters_of(run: RunProgress) -> str:
    totals = run.totals
    counts = ((totals.done, "d"), (totals.skipped, "s"), (totals.failed, "f"))
    return "".join(f"{count}{letter}" for count, letter in counts if count) or f"1{WAITING}"


def as_data(canvas: dict[str, Any]) -> str:
    """Return a canvas as JSON for its script."""
    return json.dumps(canvas, separators=(",", ":"))


def _sent_again(party: Party, send: SendProgress | None) -> int | None:
    """Return how many mails of a send the local mail server got twice; None: unknown."""
    if send is None or not send.in_doubt:
        return 0
    first_run, last_run = send.runs[0], send.latest
    if first_run.started is None or last_run.started is None:
        return None
    until = last_run.started + datetime.timedelta(seconds=last_run.elapsed_s + 1)
    return mails_sent_again(f"{party.title}:", first_run.started, until)


def _cost(send: SendProgress, sent_again: int | None) -> list[Cell]:
    cost, mails, is_over = send.cost, send.sent, send.latest.state != RUNNING
    really = f"at most {number(send.in_doubt)}" if send.in_doubt else "no duplicates"
    return [
        Cell(
            "Tasks",
            number(cost.tasks),
            f"{number(mails / cost.tasks, 1)} mails each"
            if is_over and cost.tasks and mails >= ENOUGH
            else "for all mails"
            if is_over
            else "so far",
        ),
        *(_each(label, name, cost, mails, is_over) for label, name in _COUNTED),
        Cell(
            "Duplicates",
            number(send.in_doubt) if sent_again is None else number(sent_again),
            really if sent_again is not None else "at most",
            is_doubtful=bool(send.in_doubt),
        ),
    ]


_COUNTED = (
    ("Reads", "reads"),
    ("Writes", "writes"),
    ("Calls", "round_trips"),
)


def _each(label: str, name: str, cost: Cost, mails: int, is_over: bool) -> Cell:
    count = getattr(cost, name)
    if mails >= ENOUGH:
        return Cell(label, number(count), f"{number(count / mails, 2)} per mail")
    return Cell(label, number(count), f"for {plural(mails, 'mail')}" if is_over else "so far")
