"""Administration where brokers check who asks: signed requests of an administrator, refusals of everybody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.values import Credentials
from mqfast.errors import BrokerError

ACCOUNTS = """accounts:
- {accessKey: rootroot, secretKey: rootsecret, admin: true}
- {accessKey: readonly, secretKey: readsecret, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


def test_only_an_administrator_changes_something(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="accounts are in a file of YAML")
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    with BrokerProcess(tmp_path, aclEnable=True, aclFile=tmp_path / "plain_acl.yml") as cluster:
        with AdminClient(cluster.namesrv, credentials=Credentials("rootroot", "rootsecret")) as root:
            root.create_topic("guarded", queues=2)
            root.create_group("guards")
            root.reset_offset("guards", "guarded", "last", dry_run=False)
            assert list(root.browse("guarded")) == []
            (brokers,) = root.clusters().values()
            ((broker, addresses),) = brokers.items()
            root.set_broker_config(broker, {"transactionCheckMax": "9"})
        others = (
            None,
            Credentials("readonly", "readsecret"),
            Credentials("rootroot", "another"),
            Credentials("no", "x"),
        )
        for who in others:
            with AdminClient(cluster.namesrv, credentials=who) as one:
                for change in (
                    lambda one=one: one.create_topic("other"),
                    lambda one=one: one.delete_topic("guarded"),
                    lambda one=one: one.set_broker_config(broker, {"transactionCheckMax": "1"}),
                ):
                    with pytest.raises(BrokerError, match="AclException") as refused:
                        change()
                    assert refused.value.broker == addresses[0]
                    assert "secret" not in str(refused.value)
        with AdminClient(cluster.namesrv, credentials=Credentials("rootroot", "rootsecret")) as root:
            assert ("guarded" in root.topics(), "other" in root.topics()) == (True, False)
            assert root.broker_config(broker)["transactionCheckMax"] == "9"
