"""The gRPC service of a broker: every method of RocketMQ's API 2, with the outcome of each as a status.

An error of a request is a status in the answer; the statuses of gRPC itself are for calls that reach no handler.
Source: GrpcMessagingApplication, service.proto.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.grpc.clients import GrpcClient, GrpcClients
from mqfast.broker.grpc.codes import Code, Refused, failure_of
from mqfast.broker.grpc.offsets import Offsets
from mqfast.broker.grpc.receiving import Receiving
from mqfast.broker.grpc.routes import Routes
from mqfast.broker.grpc.sends import Sends
from mqfast.broker.grpc.telemetry import Telemetry
from mqfast.grpc import messages as m
from mqfast.grpc.connection import Call, GrpcServer, Method, Outcome
from mqfast.grpc.settings import GrpcSettings
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.grpc.renewal import Renewals
    from mqfast.broker.pop.pop_service import PopService
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.processors import Processors

__all__ = ["GrpcService", "SERVICE"]

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_Serve = Callable[[Call, GrpcClient, Any], Any]
_log = logging.getLogger("mqfast.broker")


class GrpcService:
    """The calls of 5.x SDKs on a broker.

    Args: processors: the table of remoting; pop: the POP of the broker; on_closed: called with a client that has ended;
        make_call: as that of ``GrpcServer``.
    Attributes: ``server``: makes the protocol of connections.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        processors: Processors,
        pop: PopService,
        on_closed: Callable[[Channel], None],
        make_call: Callable[..., Call] = Call,
    ) -> None:
        self._log = LogLimit(_log)
        self._on_closed: Final = on_closed
        self._clients: Final = GrpcClients(context, processors, self._client_closed)
        self._telemetry: Final = Telemetry(context, self._clients)
        self._routes: Final = Routes(context)
        self._sends: Final = Sends(context)
        self._receiving: Final = Receiving(context, pop)
        self._offsets: Final = Offsets(context)
        config = context.config
        self.server: Final = GrpcServer(
            self._methods(),
            GrpcSettings(
                message_bytes_max=config["grpcMaxInboundMessageSize"],
                held_bytes_max=config["requestBytesPerConnectionMax"],
                idle_timeout_s=config["serverChannelMaxIdleTimeSeconds"],
            ),
            logger=_log,
            make_call=make_call,
        )

    @property
    def renewals(self) -> Renewals:
        """Return the messages of push consumers whose invisible times are extended."""
        return self._receiving.renewals

    def _methods(self) -> dict[str, Method]:
        telemetry, routes, sends = self._telemetry, self._routes, self._sends
        receiving, offsets = self._receiving, self._offsets
        unary: dict[str, tuple[type[m.Message], type[m.Message], _Serve]] = {
            "QueryRoute": (m.QueryRouteRequest, m.QueryRouteResponse, routes.query_route),
            "QueryAssignment": (m.QueryAssignmentRequest, m.QueryAssignmentResponse, routes.query_assignment),
            "Heartbeat": (m.HeartbeatRequest, m.StatusResponse, telemetry.heartbeat),
            "NotifyClientTermination": (m.NotifyClientTerminationRequest, m.StatusResponse, telemetry.client_ended),
            "SendMessage": (m.SendMessageRequest, m.SendMessageResponse, sends.send),
            "EndTransaction": (m.EndTransactionRequest, m.StatusResponse, sends.end_transaction),
            "RecallMessage": (m.RecallMessageRequest, m.RecallMessageResponse, sends.recall),
            "ReceiveMessage": (m.ReceiveMessageRequest, m.ReceiveMessageResponse, receiving.receive),
            "AckMessage": (m.AckMessageRequest, m.AckMessageResponse, receiving.ack),
            "ChangeInvisibleDuration": (
                m.ChangeInvisibleDurationRequest,
                m.ChangeInvisibleDurationResponse,
                receiving.change,
            ),
            "ForwardMessageToDeadLetterQueue": (
                m.ForwardMessageToDeadLetterQueueRequest,
                m.StatusResponse,
                receiving.forward,
            ),
            "PullMessage": (m.PullMessageRequest, m.PullMessageResponse, offsets.pull),
            "UpdateOffset": (m.UpdateOffsetRequest, m.StatusResponse, offsets.update),
            "GetOffset": (m.GetOffsetRequest, m.OffsetResponse, offsets.get),
            "QueryOffset": (m.QueryOffsetRequest, m.OffsetResponse, offsets.query),
            "SyncLiteSubscription": (m.Message, m.StatusResponse, _lite),
        }
        methods = {SERVICE + name: self._method(*parts) for name, parts in unary.items()}
        methods[SERVICE + "Telemetry"] = Method(
            m.TelemetryCommand, m.TelemetryCommand, telemetry.telemetry, is_stream=True
        )
        return methods

    def _method(self, request: type[m.Message], response: type[m.Message], serve: _Serve) -> Method:
        """Return a method that answers errors of the request by a status."""

        def failed(error: Exception) -> m.Message:
            status = failure_of(error)
            if status is None:
                name = request.__name__
                self._log.warning(f"failed {name}", "%s failed: %r", name, error, exc_info=error)
                status = m.Status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            return response(status=status)

        def run(call: Call, message: Any) -> Outcome:
            outcome: Outcome = serve(call, self._clients.of(call), message)
            return outcome

        return Method(request, response, run, failed=failed)

    # --- as a part of the broker ---

    def register(self, processors: Processors) -> None:
        """Do nothing: gRPC has no request codes."""

    def start(self) -> None:
        """Start to extend the invisible times of push consumers' messages."""
        self.renewals.start()

    async def stop(self) -> None:
        """Send GOAWAY to all clients; running calls end."""
        self.server.drain()
        await self.renewals.stop()

    def _client_closed(self, client: GrpcClient) -> None:
        self._receiving.client_closed(client)
        self._on_closed(client)

    def close(self) -> None:
        """End all clients: their groups belong to a broker with another store."""
        self._clients.close()

    def connection_ended(self, connection: Channel) -> None:
        """Remove the clients of a closed connection."""
        self._clients.connection_ended(connection)


def _lite(call: Call, client: GrpcClient, request: m.Message) -> m.StatusResponse:
    """Refuse SyncLiteSubscription."""
    raise Refused(Code.NOT_IMPLEMENTED, "lite topics: this broker has none")
