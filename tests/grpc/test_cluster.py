"""Routes of a cluster lead a gRPC client from one broker to the others, and from a slave to the master."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.two_brokers import as_slave, name_server, run, until
from grpc_client import GrpcClient
from running import running_broker

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


def test_a_client_of_a_slave_reaches_the_master(tmp_path: Path) -> None:
    """SDKs keep the address of a broker that comes back as a slave after a fail-over."""

    def work(slave: str, master: str) -> None:
        host, _, port = master.rpartition(":")
        wanted = m.Endpoints(1, [m.Address(host, int(port))])
        with GrpcClient(slave) as client:
            for topic in ("T", "unknown"):
                request = m.QueryRouteRequest(m.Resource("", topic), m.Endpoints(3, [m.Address("slave.example", 1)]))
                route = client.call("QueryRoute", request, m.QueryRouteResponse)
                assert route.status == m.Status(Code.OK, "OK")
                assert {queue.accept_message_types[0] for queue in route.message_queues} == {1}
                brokers = [queue.broker for queue in route.message_queues if queue.broker is not None]
                assert [broker.endpoints for broker in brokers] == [wanted] * len(route.message_queues)
            assigned = client.call(
                "QueryAssignment",
                m.QueryAssignmentRequest(m.Resource("", "T"), m.Resource("", "readers")),
                m.QueryAssignmentResponse,
            )
            (queue,) = [given.message_queue for given in assigned.assignments]
            assert queue is not None
            assert queue.broker is not None
            assert queue.broker.endpoints == wanted

    async def flow() -> None:
        async with (
            name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "m", namesrvAddr=namesrv, haAllowedAddresses="127.0.0.1") as master,
            running_broker(tmp_path / "s", **as_slave(namesrv)) as slave,
        ):
            await master.send("T", b"first")
            await until(lambda: "T" in slave.context.topics.table)
            await asyncio.to_thread(work, slave.address, master.address)

    run(flow)


def test_a_slave_without_a_master_says_so(tmp_path: Path) -> None:
    def work(address: str) -> None:
        with GrpcClient(address) as client:
            for name, code in (("T", Code.HA_NOT_AVAILABLE), ("unknown", Code.TOPIC_NOT_FOUND)):
                topic = m.Resource("", name)
                route = client.call("QueryRoute", m.QueryRouteRequest(topic), m.QueryRouteResponse)
                assert route.status is not None
                assert route.status.code == code
                request = m.QueryAssignmentRequest(topic, m.Resource("", "readers"))
                assigned = client.call("QueryAssignment", request, m.QueryAssignmentResponse)
                assert assigned.status is not None
                assert assigned.status.code == code

    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "s") as master:
                await master.send("T", b"first")
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                await asyncio.to_thread(work, slave.address)

    run(flow)
