"""Test kit for apps: real services, a clock that the test moves, and faults at every remote call.

def test_a_sale_is_shipped(rollforward):
    rollforward.client.post("/sell", data={"form_id": "f1"})
    rollforward.settle()
    assert Sale.get_by_id("f1").is_shipped
"""

from rollforward.testing.world import World

__all__ = ["World"]
