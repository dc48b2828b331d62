"""A name server and broker in one process that answers what a test wants, for tests of what a client makes of it."""

from __future__ import annotations

import asyncio
import threading

from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer


class Nonsense:
    """Serves topic T of broker b in cluster c. Attributes: answers: code -> (response code, fields, body)."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, dict[str, str], bytes]] = {}
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    async def _serve(self) -> None:
        processors = Processors()
        processors.register(sorted({int(code) for code in RequestCode}), self._answer, ConcurrencyLimit("nonsense"))
        server = RemotingServer(processors)
        await server.start("127.0.0.1", 0)
        self.address = "{}:{}".format(*server.address)
        self._ending = asyncio.Event()
        self._started.set()
        await self._ending.wait()
        await server.stop()

    def _answer(self, channel: object, request: RemotingCommand) -> RemotingCommand:
        if request.code in self.answers:
            code, fields, body = self.answers[request.code]
            return request.response(code, fields, body, remark="so it is" if code else None)
        place = f'{{"brokerAddrs":{{"0":"{self.address}"}},"brokerName":"b","cluster":"c"}}'
        queues = '[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1}]'
        clusters = f'{{"brokerAddrTable":{{"b":{place}}},"clusterAddrTable":{{"c":["b"]}}}}'
        bodies = {
            RequestCode.GET_BROKER_CLUSTER_INFO: clusters,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: f'{{"brokerDatas":[{place}],"queueDatas":{queues}}}',
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: '{"subscriptionGroupTable":{"g":{}}}',
        }
        return request.response(0, {}, bodies.get(RequestCode(request.code), "{}").encode())

    def __enter__(self) -> Nonsense:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(30)
        self._loop.close()
