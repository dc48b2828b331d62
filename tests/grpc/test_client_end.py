"""The end of a gRPC client by its own word, with calls under way: each call is answered, none fails."""

from __future__ import annotations

import logging

import pytest
from grpc_client import GrpcClient, Stream
from grpc_consumers import open_consumer

from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.testing import Broker

TOPIC, GROUP = m.Resource("", "one"), m.Resource("", "readers")
EMPTY_QUEUE = m.MessageQueue(m.Resource("", "plain"), 0)
PULL_MS = 20_000
PATIENT = {"syncFlushTimeout": "600000"}  # for a send that waits for a slow disk of a slow machine


def begin_send(client: GrpcClient) -> Stream:
    system = m.SystemProperties(message_id="0102FC000000012D7D0B1CA4E300000001", message_type=1)
    call = client.open("SendMessage")
    call.send(m.SendMessageRequest([m.GrpcMessage(TOPIC, {}, system, b"sent")]))
    call.end()
    return call


def begin_pull(client: GrpcClient) -> Stream:
    call = client.open("PullMessage")
    call.send(m.PullMessageRequest(GROUP, EMPTY_QUEUE, 0, 32, None, PULL_MS))
    call.end()
    return call


def terminate(client: GrpcClient) -> m.Status | None:
    request = m.NotifyClientTerminationRequest(GROUP)
    return client.call("NotifyClientTermination", request, m.StatusResponse).status


def test_calls_under_way_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        Broker(topics=["one", "plain"], groups=["readers"], config=PATIENT) as broker,
        open_consumer(broker.addresses["broker-a"], "leaving", "one") as client,
        broker.faults.slow_disk(0.5),
    ):
        client.socket.settimeout(120)
        held = begin_pull(client)
        client.call("QueryRoute", m.QueryRouteRequest(TOPIC), m.QueryRouteResponse)  # the pull has begun then
        late, send = begin_pull(client), begin_send(client)
        assert terminate(client) == m.Status(Code.OK, "OK")
        for pull in (held, late):
            pulled = pull.next(m.PullMessageResponse)
            assert pulled is not None
            assert pulled.status is not None
            assert pulled.status.code == Code.MESSAGE_NOT_FOUND
        sent = send.next(m.SendMessageResponse)
        assert sent is not None
        assert sent.status == m.Status(Code.OK, "OK")
        assert sent.entries[0].offset == 0
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
