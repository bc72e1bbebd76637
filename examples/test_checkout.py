"""A unit test of code that publishes, against a real broker of its own. Run it with `pytest examples/test_checkout.py`."""

import postroad.sync


def check_out(client: postroad.sync.Client, total: float) -> None:
    """Do what your program does."""
    client.publish({"type": "order", "total": total}, json={"items": ["book"]})


def test_only_large_orders_need_approval(postroad_client: postroad.sync.Client) -> None:
    """The fixtures come with Postroad: `postroad_client` is connected to a new broker."""
    approvals = postroad_client.subscribe("type = 'order' AND total > 100")
    check_out(postroad_client, 20.0)
    check_out(postroad_client, 120.5)
    assert [message["total"] for message in approvals.fetch(2, timeout=5)] == [120.5]
