"""Descriptions of remote calls name the service, the subject, and the user's own line."""

from __future__ import annotations

from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.runtime import Clients
from rollforward.tasks import task
from rollforward.testing.calls import RemoteCall
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World


class Lamp(ndb.Model):
    is_sold = ndb.BooleanProperty(default=False)


@task
def wrap_lamp(clients: Clients, lamp_id: str) -> None:
    Lamp(id=lamp_id, is_sold=True).put()


def calls_of(world: World) -> list[RemoteCall]:
    return [call for call in world.plan.remote_calls if call.name != "BeginTransaction"]


@one_emulator
def test_a_plain_put_and_a_query_are_named_with_their_kind_and_line(services: Services) -> None:
    """Code of an app that uses none of the library's patterns is described as well."""
    world = World(services)

    with world.clients.context(), world.plan.watched():
        Lamp(id="a").put()
        Lamp.query().fetch()
        Lamp.get_by_id("b")

    put, query, get = calls_of(world)
    assert (put.service, put.name, put.subject) == ("datastore", "Commit", "Lamp")
    assert put.line.startswith("test_calls.py:")
    assert put.line.endswith('Lamp(id="a").put()')
    assert str(query) == "datastore RunQuery of Lamp"
    assert get.line.endswith('Lamp.get_by_id("b")')


@one_emulator
def test_a_task_is_named_by_its_path_and_its_own_code(services: Services) -> None:
    """A call in a delivery shows the task's line, and one of the library shows its module."""
    world = World(services, tasks=[wrap_lamp])

    def body() -> None:
        outbox.enqueue(world.clients, wrap_lamp, wrap_lamp.bind("a"))

    with world.plan.watched():
        with world.clients.context():
            transact(body)
        world.settle()

    by_name = {str(call): call.line for call in world.plan.remote_calls}
    assert by_name["tasks CreateTask of /tasks/wrap-lamp"].endswith("transact(body)")
    assert by_name["datastore Commit of Lamp"].endswith("Lamp(id=lamp_id, is_sold=True).put()")
    assert by_name["datastore Commit of OutboxTask"].endswith("transact(body)")
    assert "cache.get" not in "".join(by_name)
