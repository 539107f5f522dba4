"""The receipt of an order, by mail: handed to a relay at least once, by the app's own mailer.

A relay that does not take it now, or does not reply, lets the task come again. One that never will
is noted, and keeps nothing else back.
"""

from __future__ import annotations

from email.message import EmailMessage

from pipelines.invitations import mail
from rollforward.runtime import Clients
from rollforward.tasks import Unavailable
from tests.simulation.shop.entities import RefusedReceipt, run_once_more

SENDER = "shop@shop.invalid"


def message_id_of(order: str) -> str:
    """Return the same id for each copy, by which a mail program can recognize the second one."""
    return f"<{order}@shop.invalid>"


def receipt_of(order: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = f"{order}@customers.invalid"
    message["Subject"] = f"Receipt of {order}"
    message["Message-ID"] = message_id_of(order)
    message.set_content("Thank you")
    return message


def send_receipt(clients: Clients, order: str) -> None:
    """Hand the receipt over, or note that it is refused for good.

    Raises:
        Unavailable: not now; whether it was taken may be unknown.
    """
    try:
        with clients.service(mail.SmtpMailer).connect() as connection:
            connection.send(receipt_of(order))
    except mail.RefusedError:
        run_once_more(RefusedReceipt, order)
    except mail.DeferredError as error:
        raise Unavailable(str(error)) from error
