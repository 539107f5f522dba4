"""A mail relay in this process and in virtual time, below `smtplib`, in the place of its socket.

Each command that waits for a reply is a remote call of the line. Beyond that, the relay has moods,
drawn by the seed: for the mails of an order, one attempt after the other.

    451, 550           it does not take the mail now, or never will; at its recipient
    452, 554           the same, at its end
    lost-before        the connection is lost, and the mail is not taken
    lost-after         the mail is taken, and the connection is lost
    slow:S             the mail is taken after S seconds, for which a client may not wait
"""

from __future__ import annotations

import email
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from rollforward.testing.calls import APP, RemoteCall
from tests.simulation.services.moods import AttemptMoods, MoodsOfOrders

if TYPE_CHECKING:
    from tests.simulation.actors import Actor
    from tests.simulation.world import World

HOST, PORT = "relay.invalid", 25
NOW_NOT, NEVER = ("451", "452"), ("550", "554")
LOST_BEFORE, LOST_AFTER, SLOW = "lost-before", "lost-after", "slow"


class Mail(NamedTuple):
    """A mail that the relay took: of which order, and from whom."""

    order: str
    message_id: str
    sent_by: Actor


class Relay:
    """The mails that it took, and what it will say.

    Args:
        moods: By the order, of one attempt after the other. The last one stays, if it is NEVER.
    """

    def __init__(self, moods: MoodsOfOrders) -> None:
        self._moods = AttemptMoods(moods, NEVER)
        self.taken: list[Mail] = []
        self.refused: set[str] = set()

    def mood(self, order: str) -> str:
        """Return what it does with a mail of an order, which is at its end or its recipient."""
        return self._moods.next(order)

    def reply(self, order: str, text: str) -> bytes:
        """Refuse a mail, or take it up to here."""
        mood = self._moods.take(order)
        if mood in NEVER:
            self.refused.add(order)
        return f"{mood} refused by the seed\r\n".encode() if mood else text.encode()

    def take(self, message: bytes, sent_by: Actor) -> float:
        """Take a mail, and return after how many seconds it says so.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        parsed = email.message_from_bytes(message)
        order = parsed["Subject"].rpartition(" ")[2]
        mood, _, slow_s = self._moods.take(order).partition(":")
        if mood == LOST_BEFORE:
            raise ConnectionResetError(mood)
        self.taken.append(Mail(order, parsed["Message-ID"], sent_by))
        if mood == LOST_AFTER:
            raise ConnectionResetError(mood)
        return float(slow_s or 0.0)

    def copies(self) -> dict[str, list[Mail]]:
        """Return the mails by their orders."""
        mails = defaultdict[str, list[Mail]](list)
        for mail in self.taken:
            mails[mail.order].append(mail)
        return mails

    def needless(self) -> set[str]:
        """Return the orders with a copy that no lost reply and no second delivery explains.

        The queue delivers again what was not acknowledged to it, and a fault what was.
        """
        needless = set()
        for order, mails in self.copies().items():
            first = [mail.sent_by for mail in mails if mail.sent_by.delivery is not None]
            acknowledged = [actor for actor in first if actor.is_acknowledged]
            if len(acknowledged) > 1 or len({id(actor) for actor in first}) < len(first):
                needless.add(order)
        return needless


class Wire:
    """A client's connection to the relay, as `smtplib` uses a socket and its file."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self._world, self._timeout_s = world, timeout_s
        self._lines: list[bytes] = []
        self._order = ""
        self._is_in_data = False
        self._call("connect", lambda: b"220 relay.invalid\r\n")

    def makefile(self, mode: str) -> Wire:
        return self

    def readline(self, limit: int) -> bytes:
        return self._lines.pop(0) if self._lines else b""

    def close(self) -> None:
        """Do nothing."""

    def sendall(self, sent: bytes) -> None:
        """Send a command, or a mail, and get the reply to it."""
        if self._is_in_data:
            self._is_in_data = False
            self._call("end", lambda: self._end(sent))
            return
        verb, _, rest = sent.decode().strip().partition(" ")
        self._call(verb.upper(), lambda: self._reply(verb.upper(), rest))

    def _reply(self, verb: str, rest: str) -> bytes:
        relay = self._world.relay
        match verb:
            case "RCPT":
                self._order = rest.partition("<")[2].partition("@")[0]
                if relay.mood(self._order) in (NOW_NOT[0], NEVER[0]):
                    return relay.reply(self._order, "")
            case "DATA":
                self._is_in_data = True
                return b"354 go on\r\n"
            case "QUIT":
                return b"221 bye\r\n"
        return b"250 ok\r\n"

    def _end(self, message: bytes) -> bytes:
        world = self._world
        if world.relay.mood(self._order) in (NOW_NOT[1], NEVER[1]):
            return world.relay.reply(self._order, "")
        assert world.current is not None
        after_s = world.relay.take(message, world.current)
        world.sleep(min(after_s, self._timeout_s))
        if after_s > self._timeout_s:
            raise TimeoutError("timed out")
        return b"250 taken\r\n"

    def _call(self, name: str, effect: Callable[[], bytes]) -> None:
        described = RemoteCall(f"smtp.{name}", APP)
        lost = lambda code: ConnectionResetError(code.name)  # noqa: E731
        self._lines.append(self._world.line.around(described.name, effect, lost, lambda: described))


def sockets_of(world: World) -> Any:
    """Return what stands for the module `socket` in `smtplib`."""

    def connect(address: Iterable[Any], timeout: float, source: Any = None) -> Wire:
        return Wire(world, timeout)

    return SimpleNamespace(create_connection=connect, getfqdn=lambda: "shop.invalid")
