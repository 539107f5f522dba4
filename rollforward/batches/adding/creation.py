"""Creating the tasks of members: a walk over pages, each of which links the next one first.

A member that waits in a lane becomes a row there: at the place of the time at which it was added,
and with an id of its own, so that a walk that is repeated finds it.

A member's task is named after its page, its place there and the generation, so a walk that is
repeated creates nothing twice. A walk is begun by the commit that adds members, or re-opens their
batch, and by the sweep, for members whose tasks got lost; that one uses names of its own.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward.batches.declaration import message_task
from rollforward.batches.entities import (
    RUNNING,
    WAITING,
    BatchPage,
    BatchWork,
    first_page_of,
    is_counted,
    page_key,
    pages_within,
    state_key,
    work_key,
)
from rollforward.batches.errors import BadWorkError
from rollforward.lanes.adding import PlacedMessage, add_placed
from rollforward.lanes.declaration import LaneKey, key_with_id
from rollforward.lanes.rows.entities import place_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.runtime.messages import Message
from rollforward.tasks.declaration import Task, hashed_name, task
from rollforward.tasks.errors import OtherVersionError


@dataclass(frozen=True)
class Create:
    """Arguments: the batch or addition whose members to create, and the page to continue after."""

    batch: Annotated[str, pydantic.Field(max_length=300)]
    within: Annotated[str, pydantic.Field(max_length=400)]
    generation: int
    after: Annotated[str, pydantic.Field(max_length=400)] = ""
    also_waiting: bool = True  # False: only those that have failed before.
    wake: int = 0  # Of the sweep's walks, the how manyth.


@dataclass(frozen=True)
class RunMember:
    """Arguments of a member's task. `args` are the member's own, as JSON."""

    batch: Annotated[str, pydantic.Field(max_length=300)]
    page: Annotated[str, pydantic.Field(max_length=400)]
    position: int
    generation: int
    args: str


@task("/tasks/batches/create", queue="default")
def create(clients: Clients, args: Create) -> None:
    """Create the tasks of one page of members, and the task that does so for the next page."""
    keys = pages_within(args.within, start_after=args.after).fetch(2, keys_only=True)
    if not keys:
        return
    page = keys[0].id()
    if len(keys) > 1:
        name = (args.within, args.generation, args.wake, int(args.also_waiting), page)
        create.enqueue(clients, replace(args, after=page), name=name)
    messages, placed = _messages(clients, args, page)
    if messages:
        clients.tasks.create_many(messages)
    if placed:
        add_placed(clients, placed)


def _messages(
    clients: Clients, args: Create, name: str
) -> tuple[list[Message], list[PlacedMessage]]:
    """Return the tasks of the members of a page that have not ended: alone, and in lanes.

    Raises:
        OtherVersionError: this version does not know a lane.
    """
    state, page, work, first_page = ndb.get_multi(
        [state_key(args.batch), page_key(name), work_key(name), work_key(first_page_of(name))]
    )
    if state is None or state.state != RUNNING:
        return [], []
    if page is None or not is_counted(work, first_page):
        return [], []  # Stored by a call that has not counted its members, or never will.
    tasks = [message_task(path, queue, RunMember) for path, queue, *_ in work.tasks]
    keys = [_lane_key(clients, *where[2:]) for where in work.tasks]
    added = place_of(aware_utc(first_page.added) or state.created.replace(tzinfo=datetime.UTC))
    messages: list[Message] = []
    placed: list[PlacedMessage] = []
    for i in _open(args, page):
        message, key = _message(args, tasks, work, name, i), keys[work.members[i][0]]
        if key is None:
            messages.append(message)
        else:
            # The same in each walk, so that one that is repeated adds nothing twice.
            unique = hashed_name(name, i, args.generation)[:16]
            placed.append(PlacedMessage(key, added + work.first + i, unique, message))
    return messages, placed


def check_lanes(clients: Clients, lane_ids: Iterable[str]) -> None:
    """Check that members may wait in some keys of lanes.

    Raises:
        BadWorkError: the app declares no such lane, or one that takes no tasks.
    """
    for lane_id in lane_ids:
        if key_with_id(clients, lane_id) is None:
            raise BadWorkError(f"the app declares no lane for tasks with the key {lane_id}")


def _lane_key(clients: Clients, lane_id: str = "") -> LaneKey | None:
    if not lane_id:
        return None
    key = key_with_id(clients, lane_id)
    if key is None:
        raise OtherVersionError(f"no lane is declared for {lane_id}")
    return key


def _open(args: Create, page: BatchPage) -> list[int]:
    return [
        i
        for i, letter in enumerate(page.letters)
        if page.is_open(i, args.generation) and (args.also_waiting or letter != WAITING)
    ]


def _message(
    args: Create, tasks: Sequence[Task[Any]], work: BatchWork, page: str, position: int
) -> Message:
    number, body = work.members[position]
    member = RunMember(args.batch, page, position, args.generation, body)
    name = member_name(page, position, args.generation, args.wake)
    message: Message = tasks[number].message(member, name=name)
    return message


def member_name(page: str, position: int, generation: int, wake: int) -> tuple[str, int, int, int]:
    """Return the name of a member's task, of its creation (`wake` 0) or of a walk of the sweep."""
    return page, position, generation, wake
