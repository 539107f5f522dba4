"""Debounced calls: many posts, one mail for each follower, and no post is missing.

    .venv/bin/python -m docs.examples.mail_digests

Three posts are published within a minute, each in a transaction. Ada is to hear of all, and Bob of
two. After the first mail there is a fourth post. Each task is delivered twice. The program starts
its own services: see raise_prices.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from google.cloud import ndb

import rollforward as rf
from docs.examples.raise_prices import ROOT, open_clients
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import Clients, SystemClock


# howto: from here
class Article(ndb.Model):
    title = ndb.TextProperty()


class Mail(ndb.Model):
    titles = ndb.TextProperty(repeated=True)


@dataclass(frozen=True)
class NewArticle:
    title: str


@rf.lanes.debounced("digest", wait_s=30, max_s=600)
def digest(user: str, calls: Sequence[rf.lanes.Call[NewArticle]]) -> None:
    # Runs once for a window, or again with the same calls if it failed.
    titles = [call.args.title for call in calls]
    Mail(id=f"{user} {calls[0].id}", titles=titles).put()


def publish(clients: Clients, title: str, followers: Sequence[str]) -> None:
    def body() -> None:
        if Article.get_by_id(title) is not None:
            return  # The guard: this ran before, and its calls are there.
        Article(id=title, title=title).put()
        for follower in followers:
            digest.call(clients, follower, NewArticle(title))

    rf.transact(body)


# howto: to here


class QueueClock(SystemClock):
    """The clock of the queue, which the program moves."""

    def __init__(self, queue: RunningEmulator) -> None:
        self._queue = queue

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._queue.engine.clock.now(), datetime.UTC)


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Publish posts, and deliver what they cause; return the mails."""
    clients = replace(clients, clock=QueueClock(queue))
    with clients.context():
        for title in ("Queues", "Rows", "Claims"):
            publish(clients, title, ["ada"] if title == "Rows" else ["ada", "bob"])
            queue.engine.advance(20)
        deliver_all(clients, queue)
        mails = sorted(Mail.query(), key=lambda mail: mail.key.id())
    return "\n".join(f"{mail.key.id().split()[0]}: {', '.join(mail.titles)}" for mail in mails)


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: advance to the next due time, and deliver each task twice."""
    while (wake_at := queue.engine.wake_at()) is not None:
        queue.engine.advance(max(0.0, wake_at - queue.engine.clock.now()))
        while due := queue.engine.due():
            attempt = queue.engine.begin_attempt(due[0].task_name)
            for _ in range(2):
                digest.task.work(clients, digest.task.read(attempt.body))
                if Mail.query().get() is not None:
                    publish(clients, "Ends", ["ada"])
            queue.engine.end_attempt(attempt.id, status=204)


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print(play(open_clients(datastore, queue), queue))  # noqa: T201


if __name__ == "__main__":
    main()
