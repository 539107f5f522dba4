from google.cloud import ndb

import rollforward as rf


class Reservation(ndb.Model):
    buyer = ndb.StringProperty()


def reserve(table: str, buyer: str) -> bool:
    def body() -> bool:
        reservation = Reservation.get_by_id(table)
        if reservation is None:
            reservation = Reservation(id=table, buyer=buyer)
            reservation.put()
        return bool(reservation.buyer == buyer)

    return rf.transact(body)
