"""The route of a topic, from name servers of every release and from ours."""

from __future__ import annotations

import asyncio

from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.route.name_servers import parse_addresses


def test_a_new_topic_gets_the_route_of_the_one_that_brokers_copy(cluster_address: str) -> None:
    async def flow() -> None:
        settings = InstanceSettings(parse_addresses(cluster_address))
        instance = ClientInstance.shared(settings, asyncio.get_running_loop())
        await instance.acquire()
        try:
            async with asyncio.timeout(300):
                steps = instance.publish_route("fresh", copied_topic="TBW102", queues=3, timeout_s=10)
                await instance.driver.run(steps)
            assert [one.queue_id for one in instance.routes.publish_queues("fresh")] == [0, 1, 2]
        finally:
            await instance.release()

    asyncio.run(flow())
