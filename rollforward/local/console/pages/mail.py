"""The received mail; cleared."""

from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section, back, whole

_PAGE_MAILS = 50


class Mail(Section):
    """The received mail; cleared."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/mail", self.mail),
            ("POST", "/mail/clear", self.clear_mail),
            ("GET", r"/mail/{id:[0-9]{1,18}}", self.one_mail),
        ]

    async def mail(self, request: web.Request) -> web.Response:
        """Show received mail, newest first."""
        text = request.query.get("q", "").strip()
        before_id = whole(request.query.get("before", ""))
        store = self.platform.mail.store
        mails = store.list(text=text, before_id=before_id or None, limit=_PAGE_MAILS + 1)
        page = mails[:_PAGE_MAILS]
        older = ""
        if len(mails) > _PAGE_MAILS:
            fields = {"q": text} if text else {}
            older = "/mail?" + urlencode(fields | {"before": str(page[-1].id)})
        count = store.count(text)
        return self.page(
            request,
            "mail.html",
            rows=page,
            older=older,
            count=count,
            text=text,
            is_first=not before_id,
        )

    async def one_mail(self, request: web.Request) -> web.Response:
        """Show one message as text."""
        mail = self.platform.mail.get(int(request.match_info["id"]))
        if mail is None:
            raise web.HTTPNotFound(text="There is no such message.")
        source = mail.raw.decode("utf-8", "replace")
        return self.page(request, "mail_one.html", mail=mail, source=source)

    async def clear_mail(self, request: web.Request) -> web.Response:
        """Forget all mail."""
        self.platform.mail.clear()
        raise await back(request, "/mail", "cleared")
