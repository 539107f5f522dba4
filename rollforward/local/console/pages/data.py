"""Stored data: kinds, entities, one entity; a property changed, and a kind exported."""

import asyncio
import json
from urllib.parse import urlencode

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError, InvalidArgument

from rollforward.local.console.frame import Route, Section, back
from rollforward.local.console.pages.app_console import run_path
from rollforward.local.console.reading.entities import (
    BadKeyError,
    BadValueError,
    EntityView,
    Kind,
    Page,
    Query,
    path_of,
)
from rollforward.local.console.reading.entity_changes import (
    MAX_EXPORTED,
    BadPropertyError,
    ChangedMeanwhileError,
    editable,
    state_of,
)
from rollforward.local.console.screen import Screen
from rollforward.local.console.slow_reads import SlowReads

MAX_NAME_BYTES = 1500  # Of a key in Datastore.


class Data(Section):
    """The pages of stored data, by kind and by key."""

    def __init__(self, screen: Screen) -> None:
        """Show pages on this screen; lists that take long are read while the page waits."""
        super().__init__(screen)
        self._reads = SlowReads()

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/data", self.kinds),
            ("GET", "/data/kind/{kind}", self.kind),
            ("GET", "/data/export/{kind}", self.export),
            ("GET", "/data/entity", self.entity),
            ("POST", "/data/entity", self.change),
        ]

    async def kinds(self, request: web.Request) -> web.Response:
        """Show the kinds of a namespace."""
        namespace, counts = request.query.get("ns", ""), request.query.get("counts") == "yes"
        entities, address = self.screen.entities, self.platform.datastore_address
        problem, read = "", None

        def list_unacked() -> tuple[list[Kind], list[str]]:
            kinds = entities.kinds(address, namespace, counts=counts)
            return kinds, entities.namespaces(address)

        try:
            read = await self._reads.result((address, namespace, counts), list_unacked)
        except InvalidArgument as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        kinds, namespaces = read or ([], [""])
        return self.page(
            request,
            "data.html",
            is_reading=read is None and not problem,
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
        read, problem = None, ""
        try:
            entities, address = self.screen.entities, self.platform.datastore_address
            read = await self._reads.result((address, asked), lambda: entities.page(address, asked))
        except (BadKeyError, BadValueError, InvalidArgument) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        page = read or Page([], "")
        fields = {"ns": namespace, "property": asked.property, "value": asked.value}
        fields = {name: value for name, value in fields.items() if value}
        older = {**fields, "cursor": page.next_cursor} if page.next_cursor else {}
        return self.page(
            request,
            "kind.html",
            asked=asked,
            is_reading=read is None and not problem,
            rows=page.rows,
            problem=problem,
            first=_kind_url(kind, fields),
            older=_kind_url(kind, older) if older else "",
            is_first=not asked.cursor,
            max_exported=MAX_EXPORTED,
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
        return self._entity_page(request, shown, namespace)

    async def change(self, request: web.Request) -> web.Response:
        """Give one property another value."""
        fields = {name: str(value) for name, value in (await request.post()).items()}
        namespace, address = fields.get("ns", ""), self.platform.datastore_address
        name, text = fields.get("property", ""), fields.get("value", "").replace("\r\n", "\n")
        path_text = fields.get("path", "")
        try:
            path, place = path_of(path_text), (namespace, name, text, fields.get("state", ""))
            changes = self.screen.entity_changes
            await asyncio.to_thread(changes.set_property, address, path, *place)
        except (BadKeyError, BadPropertyError, InvalidArgument) as error:
            raise web.HTTPBadRequest(text=f"{error} Nothing was changed.") from None
        except ChangedMeanwhileError:
            return self.error(
                request,
                409,
                "The entity was changed meanwhile. Reload its page.",
            )
        except GoogleAPIError as error:
            return self.error(request, 502, f"Datastore does not answer: {error}")
        query = {"ns": namespace, "path": path_text}
        place_url = "/data/entity?" + urlencode({key: part for key, part in query.items() if part})
        raise await back(request, place_url, "property")

    async def export(self, request: web.Request) -> web.Response:
        """Send the entities of a kind as a file of JSON lines."""
        asked = Query(request.match_info["kind"], request.query.get("ns", ""))
        address = self.platform.datastore_address
        try:
            lines = await asyncio.to_thread(self.screen.entity_changes.lines, address, asked)
        except InvalidArgument as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except GoogleAPIError as error:
            return self.error(request, 502, f"Datastore does not answer: {error}")
        return web.Response(
            body="".join(f"{line}\n" for line in lines).encode(errors="replace"),
            content_type="application/x-ndjson",
            headers={"Content-Disposition": 'attachment; filename="entities.jsonl"'},
        )

    def _entity_page(self, request: web.Request, shown: EntityView, namespace: str) -> web.Response:
        path_text = request.query.get("path", "")
        return self.page(
            request,
            "entity.html",
            # The app's runs are in the default namespace.
            run_path="" if namespace else run_path(path_of(path_text)),
            shown=shown,
            namespace=namespace,
            path_text=path_text,
            editable=editable(shown),
            state=state_of(shown),
        )


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
