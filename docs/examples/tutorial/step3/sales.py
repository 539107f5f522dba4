from google.cloud import ndb

import rollforward as rf


class Sale(ndb.Model):
    product = ndb.StringProperty()
    cents = ndb.IntegerProperty(indexed=False)
    is_shipped = ndb.BooleanProperty(default=False)


class SalesByProduct(rf.View):
    source = Sale

    @staticmethod
    def contributions(sale: Sale) -> rf.materialized_views.Contributions:
        return {sale.product: {"cents": sale.cents, "shipped": int(sale.is_shipped)}}


SALES = rf.ViewGroup("sales", SalesByProduct, queue="default")
MAINTENANCE = rf.materialized_views.ViewMaintenance(SALES, queue="default")


@rf.task
def ship(sale_id: str) -> None:
    def body() -> None:
        sale = Sale.get_by_id(sale_id)
        if not sale.is_shipped:
            sale.is_shipped = True
            SALES.save_in_transaction(sale)

    rf.transact(body)


def sell(sale_id: str, product: str, cents: int) -> None:
    def body() -> None:
        if Sale.get_by_id(sale_id) is None:  # Otherwise this form was sent before.
            sale = Sale(id=sale_id, product=product, cents=cents)
            SALES.save_in_transaction(sale)
            rf.enqueue(ship, ship.bind(sale_id))

    rf.transact(body)
