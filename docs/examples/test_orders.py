"""Test an application with a broker inside of the test: ``pytest test_orders.py``. No server runs before.

Prints: 2 passed
"""


def place_order(namesrv_addr, number):
    """Send an order: the code under test."""
    from mqfast import Producer

    with Producer("order-service", namesrv_addr) as producer:
        producer.send("orders", number, tags="new")


def test_an_order_is_sent(rocketmq_broker):
    place_order(rocketmq_broker.namesrv_addr, "42")
    rocketmq_broker.assert_sent("orders", body=b"42", tags="new")


def test_an_order_is_billed_once(rocketmq_broker):
    consumer = rocketmq_broker.consumer("billing")
    billed = []

    @consumer.on("bills")
    def bill(message):
        billed.append(message.body)

    with consumer:
        rocketmq_broker.send("bills", "42")
        rocketmq_broker.wait_consumed("billing", "bills", timeout_s=20)
    assert billed == [b"42"]
