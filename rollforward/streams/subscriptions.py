"""Subscriptions: the readers of a published stream, and their positions."""

from __future__ import annotations

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import run_steps
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.publications import registration
from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.registration import Subscriber


def subscribers(
    clients: Clients, pipeline: Declaration, publication: Publication
) -> list[Subscriber]:
    """Return the pipelines that read a publication, with their positions.

    Raises:
        UnknownStreamError: the pipeline does not have this publication.
    """
    _check(pipeline, publication)
    return run_steps(clients, pipeline, registration.subscribers, publication.name)


def unsubscribe(
    clients: Clients, pipeline: Declaration, publication: Publication, subscriber: Subscriber
) -> bool:
    """Stop keeping records for a subscriber that is gone for good; return False if it is unknown.

    A subscriber that still runs registers again within a minute.

    Raises:
        UnknownStreamError: the pipeline does not have this publication.
        Retry, Unavailable: repeat it; it may have been done.
    """
    _check(pipeline, publication)
    place = publication.name, subscriber.pipeline, subscriber.stream
    return run_steps(clients, pipeline, registration.unregister, *place)


def _check(pipeline: Declaration, publication: Publication) -> None:
    if not pipeline.versions_of(publication.name):
        raise UnknownStreamError(f"{pipeline.name} has no publication {publication.name}")
