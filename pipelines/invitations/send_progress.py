"""Progress of a send: its run, and the runs that retried its failed items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.invitations import Party
from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.progress import RunProgress, progress, run_of
from rollforward.runtime import Clients, Cost


@dataclass(frozen=True)
class SendProgress:
    """A send: the press, and the retries that followed, oldest first."""

    change: int
    guests: int
    imports: int  # Number of lists that its guests are from.
    runs: Sequence[RunProgress]

    @property
    def latest(self) -> RunProgress:
        return self.runs[-1]

    @property
    def sent(self) -> int:
        return sum(run.totals.done for run in self.runs)

    @property
    def in_doubt(self) -> int:
        return sum(run.totals.in_doubt for run in self.runs)

    @property
    def counts(self) -> dict[str, int]:
        """Guests by state: the last run has the items that earlier runs left over."""
        latest = self.latest
        return {
            "done": self.sent,
            "waiting": latest.waiting,
            "retrying": latest.totals.retrying,
            "failed": latest.totals.failed,
            "skipped": sum(run.totals.skipped for run in self.runs),
        }

    @property
    def cost(self) -> Cost:
        return sum((run.totals.cost for run in self.runs), Cost())

    @property
    def elapsed_s(self) -> float:
        return sum(run.elapsed_s for run in self.runs)


def latest_send(clients: Clients, party: Party) -> SendProgress | None:
    """Return the progress of a party's last send; None: there was none."""
    if not party.sends:
        return None
    send = party.sends[-1]
    read_at = clients.clock.now()
    runs = [progress(run_id, now=read_at, clients=clients) for run_id in lineage(send["run_id"])]
    return SendProgress(send["change"], send["guests"], send["imports"], runs)


def lineage(run_id: str) -> list[str]:
    """Return a run and the runs that retried its failed items, oldest first."""
    ids = [run_id]
    while child := run_of(ids[-1]).retried_by:
        ids.append(child)
    return ids


def run_ids(party: Party) -> set[str]:
    """Return the runs of all sends that a party keeps."""
    ids: set[str] = set()
    try:
        for send in party.sends:
            ids.update(lineage(send["run_id"]))
    except UnknownRunError:
        return ids
    return ids
