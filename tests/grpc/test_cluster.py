"""Routes of a cluster lead a gRPC client from one broker to the others."""

from __future__ import annotations

from grpc_client import GrpcClient

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.testing import Broker


def test_a_client_of_one_broker_reaches_the_other() -> None:
    with Broker(topics={"spread": 2}, groups=["readers"], brokers=2) as broker:
        assert broker.endpoints == ";".join(broker.addresses.values())
        used = m.Endpoints(3, [m.Address("broker.example", 1)])
        with GrpcClient(broker.addresses["broker-a"]) as client:
            request = m.QueryRouteRequest(m.Resource("", "spread"), used)
            route = client.call("QueryRoute", request, m.QueryRouteResponse)
            wanted = m.QueryAssignmentRequest(m.Resource("", "spread"), m.Resource("", "readers"), used)
            assignment = client.call("QueryAssignment", wanted, m.QueryAssignmentResponse)
        places = {queue.broker.name: queue.broker.endpoints for queue in route.message_queues if queue.broker}
        host, _, port = broker.addresses["broker-b"].rpartition(":")
        assert places == {"broker-a": used, "broker-b": m.Endpoints(1, [m.Address(host, int(port))])}
        assert len(route.message_queues) == 4
        assigned = [given.message_queue for given in assignment.assignments]
        assert {queue.broker.name for queue in assigned if queue and queue.broker} == {"broker-a", "broker-b"}
        with GrpcClient(f"{host}:{port}") as other:
            system = m.SystemProperties(message_id="0102FC000000012D7D0B1CA4E300000001", message_type=1)
            message = m.GrpcMessage(m.Resource("", "spread"), {}, system, b"at b")
            answer = other.call("SendMessage", m.SendMessageRequest([message]), m.SendMessageResponse)
            assert answer.status is not None
            assert answer.status.code == Code.OK
        assert [stored.body for stored in broker.messages("spread")] == [b"at b"]
