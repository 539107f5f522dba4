"""A series of reminders as a flow: on days of the calendar, at nine where the reader lives."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

from google.cloud import ndb

from rollforward.flows import Steps, flow


# howto: from here
class DunnedInvoice(ndb.Model):
    is_paid = ndb.BooleanProperty(indexed=False, default=False)
    reminders = ndb.IntegerProperty(indexed=False, default=0)


def remind_unless_paid(invoice_id: str) -> bool:
    invoice = DunnedInvoice.get_by_id(invoice_id)
    if invoice.is_paid:
        return False
    invoice.reminders += 1  # The task of a mail belongs here, too: it is part of the commit.
    invoice.put()
    return True


@flow("invoice-reminders")
def remind(step: Steps, due: datetime.date, zone: str) -> str:
    nine = datetime.time(9, tzinfo=ZoneInfo(zone))
    for number, days in enumerate((1, 8, 22), start=1):
        morning = datetime.datetime.combine(due + datetime.timedelta(days=days), nine)
        step.sleep(f"until reminder {number}", until=morning)
        if not step.commit(f"reminder {number}", remind_unless_paid, step.flow_id):
            return "paid"
    return "for the lawyers"


# howto: to here
