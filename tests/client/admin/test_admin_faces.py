"""The two faces of administration: the same calls, and how each begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading

import pytest
from admin_cluster import address_of, filled
from members import ask
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.admin.async_admin_client import AsyncAdminClient
from mqfast.client.admin.call import call, paged
from mqfast.errors import ClientClosed, MqfastError
from mqfast.remoting.codes import RequestCode


def test_a_closed_client_says_so(cluster: BrokerProcess) -> None:
    client = AdminClient(cluster.namesrv)
    assert client.clusters()
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.clusters()

    async def flow() -> None:
        async with AsyncAdminClient(cluster.namesrv) as other:
            assert await other.clusters()
        with pytest.raises(ClientClosed):
            await other.clusters()
        await other.close()

    asyncio.run(flow())


def test_the_asyncio_face_starts_no_thread(cluster: BrokerProcess) -> None:
    async def flow() -> None:
        before = threading.active_count()
        async with AsyncAdminClient(cluster.namesrv) as client:
            await asyncio.gather(*(client.clusters() for _ in range(8)))
            assert threading.active_count() == before

    asyncio.run(flow())


def test_threads_share_an_admin_client(admin: AdminClient) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                assert admin.clusters()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork_child_of_an_admin_client_starts_again(admin: AdminClient) -> None:
    expected = admin.clusters()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"none"
        with contextlib.suppress(MqfastError):
            answer = b"same" if admin.clusters() == expected else b"other"
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"same"
    os.close(read)
    os.waitpid(child, 0)
    assert admin.clusters() == expected


def test_both_faces_have_the_same_calls_with_docs_and_signatures() -> None:
    calls = [name for name in dir(AdminClient) if not name.startswith("_") and name not in ("close", "after_fork")]
    faces = {name: inspect.getattr_static(AdminClient, name) for name in calls}
    assert {type(face) for face in faces.values()} == {call, paged}
    assert {"clusters", "create_topic", "lag", "reset_offset", "browse", "resend", "trace"} <= faces.keys()
    for name, face in faces.items():
        sync, other = getattr(AdminClient, name), getattr(AsyncAdminClient, name)
        assert sync.__doc__
        assert list(inspect.signature(sync).parameters) == list(inspect.signature(other).parameters)
        assert inspect.iscoroutinefunction(other) == isinstance(face, call), name
        assert not inspect.iscoroutinefunction(sync)
        assert "Steps" not in str(inspect.signature(sync).return_annotation), name


def test_a_browse_that_stops_says_that_there_is_more(admin: AdminClient, caplog: pytest.LogCaptureFixture) -> None:
    filled(admin, "stops", 5, queues=2)
    assert len(list(admin.browse("stops", max_count=5))) == 5
    assert "there may be more" not in caplog.text
    assert len(list(admin.browse("stops", max_count=4))) == 4
    assert "there may be more" in caplog.text


def test_a_topic_is_made_smaller_in_two_steps(admin: AdminClient) -> None:
    admin.create_topic("smaller", queues=4)
    admin.create_topic("smaller", queues=4, write_queues=2, kind="FIFO")
    (settings,) = admin.topic_config("smaller").values()
    assert (settings["readQueueNums"], settings["writeQueueNums"]) == (4, 2)
    assert settings["attributes"] == {"message.type": "FIFO"}
    admin.create_topic("smaller", queues=2, kind="FIFO")
    (settings,) = admin.topic_config("smaller").values()
    assert (settings["readQueueNums"], settings["writeQueueNums"]) == (2, 2)
    assert settings["attributes"] == {"message.type": "FIFO"}


def test_deleted_topic_is_removed_from_the_broker(admin: AdminClient) -> None:
    admin.create_topic("gone", queues=1)
    admin.delete_topic("gone")
    assert ask(address_of(admin), RequestCode.GET_TOPIC_CONFIG, topic="gone").code == 17
