"""Stored data: kinds, entities, one entity. It only reads."""

import asyncio
import json
from urllib.parse import urlencode

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError, InvalidArgument

from rollforward.local.console.frame import Route, Section
from rollforward.local.console.reading.entities import (
    BadKeyError,
    BadValueError,
    Page,
    Query,
    path_of,
)

MAX_NAME_BYTES = 1500  # Of a key in Datastore.


class Data(Section):
    """The pages of stored data, by kind and by key."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/data", self.kinds),
            ("GET", "/data/kind/{kind}", self.kind),
            ("GET", "/data/entity", self.entity),
        ]

    async def kinds(self, request: web.Request) -> web.Response:
        """Show the kinds of a namespace."""
        namespace, counts = request.query.get("ns", ""), request.query.get("counts") == "yes"
        entities, address = self.screen.entities, self.platform.datastore_address
        problem, kinds, namespaces = "", [], [""]
        try:
            kinds, namespaces = await asyncio.gather(
                asyncio.to_thread(entities.kinds, address, namespace, counts=counts),
                asyncio.to_thread(entities.namespaces, address),
            )
        except InvalidArgument as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        return self.page(
            request,
            "data.html",
            kinds=kinds,
            namespaces=namespaces,
            namespace=namespace,
            counts=counts,
            problem=problem,
        )

    async def kind(self, request: web.Request) -> web.Response:
        """Show entities of a kind, by key; or go to the one whose key was typed."""
        query = request.query
        kind, namespace = request.match_info["kind"], query.get("ns", "")
        if typed := query.get("key", "").strip():
            raise web.HTTPSeeOther(_entity_url(kind, typed, namespace))
        asked = Query(
            kind,
            namespace,
            query.get("property", "").strip(),
            query.get("value", ""),
            query.get("cursor", ""),
        )
        page, problem = Page([], ""), ""
        try:
            entities, address = self.screen.entities, self.platform.datastore_address
            page = await asyncio.to_thread(entities.page, address, asked)
        except (BadKeyError, BadValueError, InvalidArgument) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        fields = {"ns": namespace, "property": asked.property, "value": asked.value}
        fields = {name: value for name, value in fields.items() if value}
        older = {**fields, "cursor": page.next_cursor} if page.next_cursor else {}
        return self.page(
            request,
            "kind.html",
            asked=asked,
            rows=page.rows,
            problem=problem,
            first=_kind_url(kind, fields),
            older=_kind_url(kind, older) if older else "",
            is_first=not asked.cursor,
        )

    async def entity(self, request: web.Request) -> web.Response:
        """Show one entity."""
        namespace = request.query.get("ns", "")
        try:
            path = path_of(request.query.get("path", ""))
            entities, address = self.screen.entities, self.platform.datastore_address
            shown = await asyncio.to_thread(entities.one, address, path, namespace)
        except (BadKeyError, InvalidArgument) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            return self.error(request, 502, f"Datastore does not answer: {error}")
        if shown is None:
            raise web.HTTPNotFound(text="There is no such entity, or it was deleted.")
        return self.page(request, "entity.html", shown=shown, namespace=namespace)


def _kind_url(kind: str, fields: dict[str, str]) -> str:
    return f"/data/kind/{kind}?{urlencode(fields)}" if fields else f"/data/kind/{kind}"


def _entity_url(kind: str, typed: str, namespace: str) -> str:
    """Return the address of the entity whose id or name was typed.

    Raises:
        web.HTTPBadRequest: it is too long for a name.
    """
    if len(typed.encode(errors="replace")) > MAX_NAME_BYTES:
        raise web.HTTPBadRequest(text="A key's name must have at most 1500 bytes.")
    part = int(typed) if typed.isdecimal() and len(typed) < 19 else typed
    query = {"ns": namespace, "path": json.dumps([kind, part], ensure_ascii=False)}
    return "/data/entity?" + urlencode({name: value for name, value in query.items() if value})
