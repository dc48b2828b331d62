"""The declarations of the broker's settings that have an effect here. The timer declares its own settings.

Source: BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, AuthConfig, TlsSystemConfig.
"""

from __future__ import annotations

import os
from typing import Final

from mqfast.schedule.timer.settings import TimerSettings
from mqfast.settings.declaration import SettingSpec, specs_of

__all__ = ["MASTER_ID", "acting_settings", "setting_groups"]

MASTER_ID: Final = 0
_I64_MAX: Final = 2**63 - 1


def acting_settings() -> dict[str, SettingSpec]:
    """Return the declarations of all settings with an effect here, by name."""
    return {name: spec for group in setting_groups().values() for name, spec in group.items()}


def setting_groups() -> dict[str, dict[str, SettingSpec]]:
    """Return the declarations in groups with titles, as documents show the settings."""
    return {
        "Identity and address": _identity(),
        "Metrics and probes": _metrics(),
        "Registration": _registration(),
        "Replication": _replication(),
        "Fail-over": _failover(),
        "Topics and groups": _topics(),
        "Sending": _sending(),
        "Pulling": _pulling(),
        "POP": _popping(),
        "Delays, transactions and the timer": _delays(),
        "Connections": _connections(),
        "Access control": _access(),
        "TLS": _tls(),
    }


def _identity() -> dict[str, SettingSpec]:
    return {
        "brokerClusterName": SettingSpec.of("DefaultCluster", doc="Name of the cluster."),
        "brokerName": SettingSpec.of(
            os.uname().nodename or "DEFAULT_BROKER", doc="Name of the broker: a master and its slaves share the name."
        ),
        "brokerId": SettingSpec.of(MASTER_ID, doc="0 for a master, 1 or more for a slave."),
        "brokerIP1": SettingSpec.of(
            "", doc="Address for clients; empty: the address of the route to the name servers."
        ),
        "brokerIP2": SettingSpec.of("", doc="Address for slaves; empty: as brokerIP1."),
        "bindAddress": SettingSpec.of("127.0.0.1", doc="Listening address; RocketMQ's default is every interface."),
        "listenPort": SettingSpec.of(
            10911, high=65_535, doc="Listening port; the VIP port is two below; 0 for a free port, without VIP port."
        ),
        "namesrvAddr": SettingSpec.of("", doc="Name servers, between semicolons; a change takes effect at once."),
        "regionId": SettingSpec.of(
            "DefaultRegion", doc="Value of MSG_REGION in properties of messages and in responses to sends."
        ),
        "traceOn": SettingSpec.of(True, doc="Value of TRACE_ON in properties of messages and in responses to sends."),
        "brokerPermission": SettingSpec.of(
            6, doc="Permission bits of the broker: 4 for reading, 2 for writing.", is_live=True
        ),
        "rocketmqHome": SettingSpec.of("", doc="Directory of RocketMQ, with conf/plain_acl.yml."),
        "configBlackList": SettingSpec.of(
            "configBlackList;brokerConfigPath", doc="Settings, between semicolons, that administrators may not change."
        ),
    }


def _metrics() -> dict[str, SettingSpec]:
    return {
        "metricsExporterType": SettingSpec.of("DISABLE", doc="PROM: metrics and probes over HTTP."),
        "metricsPromExporterHost": SettingSpec.of("", doc="Listening address of metrics; empty: as bindAddress."),
        "metricsPromExporterPort": SettingSpec.of(5557, doc="Listening port of metrics."),
        "metricsLabel": SettingSpec.of("", doc="Labels of all metrics, as name:value, between commas."),
        "enableRemotingMetrics": SettingSpec.of(True, doc="Measure latencies of requests, with metrics."),
    }


def _registration() -> dict[str, SettingSpec]:
    return {
        "registerNameServerPeriod": SettingSpec.of(
            30_000, unit="ms", doc="Pause between two registrations at the name servers."
        ),
        "registerBrokerTimeoutMills": SettingSpec.of(24_000, unit="ms", doc="Time limit of a registration."),
        "enableSingleTopicRegister": SettingSpec.of(
            True, doc="Register a changed topic alone; RocketMQ's default is false.", is_live=True
        ),
    }


def _replication() -> dict[str, SettingSpec]:
    return {
        "haListenPort": SettingSpec.of(10912, high=65_535, doc="Listening port for slaves; by default listenPort + 1."),
        "haBindAddress": SettingSpec.of("", doc="Listening address for slaves; empty: as bindAddress."),
        "haAllowedAddresses": SettingSpec.of(
            "", doc="Addresses and networks of slaves, as 10.0.0.2,10.1.0.0/16, or *."
        ),
        "haTlsCaFile": SettingSpec.of("", doc="TLS of replication: the CA of the brokers' certificates."),
        "haTlsCertFile": SettingSpec.of("", doc="TLS of replication: the certificate of this broker."),
        "haTlsKeyFile": SettingSpec.of("", doc="TLS of replication: the key of this broker."),
        "haMasterAddress": SettingSpec.of(
            "", doc="The master's host:haListenPort; empty: from the name servers; not with fail-over."
        ),
        "haSendHeartbeatInterval": SettingSpec.of(
            5000, unit="ms", doc="Idle time after which a master sends an empty frame, and a slave its report."
        ),
        "haHousekeepingInterval": SettingSpec.of(
            20_000, unit="ms", doc="A connection of replication without received bytes for so long is closed."
        ),
        "haTransferBatchSize": SettingSpec.of(32_768, unit="bytes", doc="Log bytes of one frame."),
        "haFlowControlEnable": SettingSpec.of(False, doc="Apply maxHaTransferByteInSecond."),
        "maxHaTransferByteInSecond": SettingSpec.of(
            104_857_600, unit="bytes", doc="Bytes per second to all slaves together, with haFlowControlEnable."
        ),
        "haMaxGapNotInSync": SettingSpec.of(
            268_435_456, unit="bytes", doc="A slave that is further behind counts as absent.", is_live=True
        ),
        "haTruncateDiverged": SettingSpec.of(
            False, doc="A slave truncates bytes that its master lacks, after a copy into a folder."
        ),
        "haMaxTimeSlaveNotCatchup": SettingSpec.of(
            15_000, unit="ms", doc="Fail-over: a slave that was not level for so long is not in sync.", is_live=True
        ),
        "minInSyncReplicas": SettingSpec.of(
            1, unit="brokers", doc="Fail-over: smallest set of brokers in sync, the master included.", is_live=True
        ),
    }


def _failover() -> dict[str, SettingSpec]:
    return {
        "haEtcdEndpoints": SettingSpec.of(
            "", doc="Fail-over: members of etcd as host:port, or with https before, between semicolons."
        ),
        "haEtcdPrefix": SettingSpec.of("/mqfast", doc="Prefix of the keys in etcd; cluster and broker name follow."),
        "haEtcdCaFile": SettingSpec.of("", doc="TLS of etcd: the CA of etcd's certificates."),
        "haEtcdCertFile": SettingSpec.of("", doc="TLS of etcd: the certificate of this broker."),
        "haEtcdKeyFile": SettingSpec.of("", doc="TLS of etcd: the key of this broker."),
        "haLeaseSeconds": SettingSpec.of(
            3,
            unit="s",
            doc="Fail-over: a new master accepts messages so long after the last confirmation of the old master.",
        ),
        "haLeaseMarginMs": SettingSpec.of(500, unit="ms", doc="Fail-over: a master stops so much earlier."),
        "haBrokerIds": SettingSpec.of(
            "", doc="Fail-over: ids of all brokers of the name, between semicolons; for etcd without its record."
        ),
        "inSyncReplicas": SettingSpec.of(
            1,
            unit="brokers",
            doc="Brokers, the master included, that must have a message before its response.",
            is_live=True,
        ),
        "slaveTimeout": SettingSpec.of(3000, unit="ms", doc="Time limit of a send's wait for slaves.", is_live=True),
    }


def _topics() -> dict[str, SettingSpec]:
    return {
        "autoCreateTopicEnable": SettingSpec.of(True, doc="A send creates a missing topic.", is_live=True),
        "autoCreateSubscriptionGroup": SettingSpec.of(True, doc="A heartbeat creates a missing group.", is_live=True),
        "maxAutoCreatedTopics": SettingSpec.of(
            50_000, unit="topics", doc="With so many topics no send creates a topic; administrators can.", is_live=True
        ),
        "maxAutoCreatedGroups": SettingSpec.of(
            50_000,
            unit="groups",
            doc="With so many groups no heartbeat creates a group; administrators can.",
            is_live=True,
        ),
        "clientGroupsMax": SettingSpec.of(
            2000, unit="groups", doc="Groups of one connection, of consumers and of producers."
        ),
        "groupMembersMax": SettingSpec.of(500_000, unit="members", doc="Connections in groups, of all groups."),
        "subscriptionBytesMax": SettingSpec.of(64 << 20, unit="bytes", doc="Text of the subscriptions of all groups."),
        "queueLocksMax": SettingSpec.of(500_000, unit="queues", doc="Locked queues of all groups."),
        "defaultTopicQueueNums": SettingSpec.of(8, unit="queues", doc="Queues of a topic that a send creates."),
        "clusterTopicEnable": SettingSpec.of(
            True, doc="Permit reads and writes of the topic with the name of the cluster."
        ),
        "brokerTopicEnable": SettingSpec.of(
            True, doc="Permit reads and writes of the topic with the name of the broker."
        ),
        "traceTopicEnable": SettingSpec.of(False, doc="Create the topic for traces."),
        "msgTraceTopicName": SettingSpec.of("RMQ_SYS_TRACE_TOPIC", doc="Name of the topic for traces."),
        "reviveQueueNum": SettingSpec.of(
            8, unit="queues", doc="Queues of the topic rmq_sys_REVIVE_LOG of the cluster."
        ),
    }


def _sending() -> dict[str, SettingSpec]:
    return {
        "rejectTransactionMessage": SettingSpec.of(False, doc="Refuse half messages.", is_live=True),
        "brokerFastFailureEnable": SettingSpec.of(True, doc="Refuse sends that waited too long.", is_live=True),
        "waitTimeMillsInSendQueue": SettingSpec.of(
            200, unit="ms", doc="Longest wait of a send, with brokerFastFailureEnable.", is_live=True
        ),
        "sendThreadPoolQueueCapacity": SettingSpec.of(
            10_000, unit="requests", doc="Sends at work, and sends that may wait; a further send is refused."
        ),
        "idempotentWriteKeepHours": SettingSpec.of(
            168, unit="hours", doc="Time after its last row for which a write of Spark is remembered."
        ),
        "idempotentWriteTasksMax": SettingSpec.of(
            200_000,
            unit="entries",
            doc="Remembered tasks times queues of writes, and topics of finished batches; above: SYSTEM_BUSY.",
        ),
        "startAcceptSendRequestTimeStamp": SettingSpec.of(
            0, high=_I64_MAX, unit="ms", doc="Time since the epoch before which sends are refused.", is_live=True
        ),
    }


def _popping() -> dict[str, SettingSpec]:
    return {
        "popFromRetryProbability": SettingSpec.of(
            20, high=100, unit="percent", doc="POP requests that read the retry topic first.", is_live=True
        ),
        "popFromRetryProbabilityForPriority": SettingSpec.of(
            0,
            high=100,
            unit="percent",
            doc="POP requests of a topic of the type PRIORITY that read the retry topic first.",
            is_live=True,
        ),
        "priorityOrderAsc": SettingSpec.of(
            True, doc="The highest number is the highest priority; false: the lowest number.", is_live=True
        ),
        "enableRetryTopicV2": SettingSpec.of(
            False, doc="Redeliver messages of POP in %RETRY%group+topic instead of %RETRY%group_topic.", is_live=True
        ),
        "retrieveMessageFromPopRetryTopicV1": SettingSpec.of(
            True, doc="With enableRetryTopicV2: read %RETRY%group_topic as well.", is_live=True
        ),
        "initPopOffsetByCheckMsgInMem": SettingSpec.of(
            True, doc="A new POP group begins at the first message if that is still in memory.", is_live=True
        ),
        "popResponseReturnActualRetryTopic": SettingSpec.of(
            False, doc="Deliver a retry with the retry topic instead of the original topic.", is_live=True
        ),
        "popPollingSize": SettingSpec.of(
            1024, unit="requests", doc="Held POP requests of a topic and a group.", is_live=True
        ),
        "maxPopPollingSize": SettingSpec.of(
            100_000, low=1, unit="requests", doc="Held POP requests; a further request gets POLLING_FULL."
        ),
        "enablePopMessageThreshold": SettingSpec.of(
            False, doc="Limit the messages in flight of each queue and group.", is_live=True
        ),
        "popInflightMessageThreshold": SettingSpec.of(
            10_000, unit="messages", doc="That limit, with enablePopMessageThreshold.", is_live=True
        ),
        "popMessagesInFlightMax": SettingSpec.of(
            1_000_000,
            low=1,
            unit="messages",
            doc="Messages in flight of all groups, which are in memory.",
            is_live=True,
        ),
        "defaultMessageRequestMode": SettingSpec.of(
            "PULL", choices=("PULL", "POP"), doc="Mode of groups without a mode of their own (401).", is_live=True
        ),
        "defaultPopShareQueueNum": SettingSpec.of(
            -1, low=-1, unit="clients", doc="Further clients whose queues a POP client reads; -1: all.", is_live=True
        ),
    }


def _pulling() -> dict[str, SettingSpec]:
    return {
        "longPollingEnable": SettingSpec.of(
            True, doc="Hold a pull without messages until messages arrive.", is_live=True
        ),
        "shortPollingTimeMills": SettingSpec.of(
            1000, unit="ms", doc="Hold time of a pull without longPollingEnable.", is_live=True
        ),
        "slaveReadEnable": SettingSpec.of(
            False, doc="A slave answers pulls, and a master directs slow consumers to a slave.", is_live=True
        ),
        "enablePropertyFilter": SettingSpec.of(False, doc="Allow SQL filters.", is_live=True),
        "rejectPullConsumerEnable": SettingSpec.of(False, doc="Refuse pull consumers.", is_live=True),
        "notifyConsumerIdsChangedEnable": SettingSpec.of(
            True, doc="Notify members of a group of changes.", is_live=True
        ),
        "useServerSideResetOffset": SettingSpec.of(
            True, doc="Apply resets of offsets in the broker, at the next pull.", is_live=True
        ),
        "litePullMessageEnable": SettingSpec.of(True, doc="Answer lite pulls (361).", is_live=True),
        "pullThreadPoolQueueCapacity": SettingSpec.of(
            100_000, unit="requests", doc="Pulls that may wait; a further pull is refused."
        ),
        "litePullThreadPoolQueueCapacity": SettingSpec.of(
            100_000, unit="requests", doc="Lite pulls that may wait; a further pull is refused."
        ),
        "enableBroadcastOffsetStore": SettingSpec.of(
            True, doc="Track offsets of broadcasting consumers.", is_live=True
        ),
        "broadcastOffsetExpireSecond": SettingSpec.of(
            120,
            unit="s",
            doc="Time without a pull after which a disconnected broadcasting consumer is removed.",
            is_live=True,
        ),
        "broadcastOffsetExpireMaxSecond": SettingSpec.of(
            300,
            unit="s",
            doc="Time without a pull after which a connected broadcasting consumer is removed.",
            is_live=True,
        ),
        "filterDataCleanTimeSpan": SettingSpec.of(
            86_400_000, unit="ms", doc="Offline time of a group after which its filters are removed.", is_live=True
        ),
        "maxErrorRateOfBloomFilter": SettingSpec.of(
            20, unit="%", doc="False positives of the Bloom filters of queue units."
        ),
        "expectConsumerNumUseFilter": SettingSpec.of(
            32, unit="groups", doc="Groups with filters that a Bloom filter is sized for."
        ),
        "accessMessageInMemoryMaxRatio": SettingSpec.of(
            40, unit="%", doc="Share of the memory within which messages count as in memory.", is_live=True
        ),
        "maxTransferBytesOnMessageInMemory": SettingSpec.of(
            262_144, unit="bytes", doc="Most bytes of a pull from memory.", is_live=True
        ),
        "maxTransferCountOnMessageInMemory": SettingSpec.of(
            32, unit="messages", doc="Most messages of a pull from memory.", is_live=True
        ),
        "maxTransferBytesOnMessageInDisk": SettingSpec.of(
            65_536, unit="bytes", doc="Most bytes of a pull from disk.", is_live=True
        ),
        "maxTransferCountOnMessageInDisk": SettingSpec.of(
            8, unit="messages", doc="Most messages of a pull from disk.", is_live=True
        ),
        "maxFilterMessageSize": SettingSpec.of(
            16_000, unit="bytes", doc="Bytes of queue units that one get may scan.", is_live=True
        ),
        "travelCqFileNumWhenGetMessage": SettingSpec.of(
            1, unit="files", doc="Queue files that one get may cross.", is_live=True
        ),
    }


def _delays() -> dict[str, SettingSpec]:
    return {
        "flushDelayOffsetInterval": SettingSpec.of(
            10_000, unit="ms", doc="Pause between two writes of delayOffset.json."
        ),
        "transactionTimeOut": SettingSpec.of(
            6000, unit="ms", doc="Age of a half message at its first check.", is_live=True
        ),
        "transactionCheckMax": SettingSpec.of(
            15, unit="checks", doc="Checks after which a half message is discarded.", is_live=True
        ),
        "transactionCheckInterval": SettingSpec.of(
            30_000, unit="ms", doc="Pause between two rounds of checks.", is_live=True
        ),
        "recallMessageEnable": SettingSpec.of(False, doc="Producers may recall timed messages.", is_live=True),
        "allowRecallWhenBrokerNotWriteable": SettingSpec.of(
            True, doc="Accept a recall without permission for writing.", is_live=True
        ),
        **{str(timer.rocketmq_name): timer for timer in specs_of(TimerSettings).values()},
        "storeReplyMessageEnable": SettingSpec.of(True, doc="Store replies to requests.", is_live=True),
    }


def _connections() -> dict[str, SettingSpec]:
    return {
        "serverChannelMaxIdleTimeSeconds": SettingSpec.of(
            120, unit="s", doc="A connection without a byte in either direction for this long is closed."
        ),
        "serverSelectorThreads": SettingSpec.of(
            0,
            high=64,
            unit="threads",
            doc="Threads without the interpreter that own plain connections, on Linux; 0: the event loop serves all.",
        ),
        "connectionsMax": SettingSpec.of(
            50_000, unit="connections", doc="Connections at once; a further one is closed at once."
        ),
        "requestsPerConnectionMax": SettingSpec.of(
            10_000, unit="requests", doc="Open requests of one connection; above, the connection is not read."
        ),
        "requestBytesPerConnectionMax": SettingSpec.of(
            64 << 20, unit="bytes", doc="Bodies of open requests of one connection; above, the connection is not read."
        ),
        "frameMaxLength": SettingSpec.of(
            16 * 1024 * 1024,
            unit="bytes",
            doc="Longest accepted frame and longest response (RocketMQ: com.rocketmq.remoting.frameMaxLength).",
        ),
        "grpcServerPort": SettingSpec.of(
            0, high=65_535, doc="Another listening port, as that of RocketMQ's proxy (8081); 0: listenPort alone."
        ),
        "grpcMaxInboundMessageSize": SettingSpec.of(
            16 << 20, unit="bytes", low=1 << 20, high=1 << 30, doc="Longest accepted message of gRPC."
        ),
        "enableTopicMessageTypeCheck": SettingSpec.of(
            True,
            doc="gRPC: a topic takes messages of its type only (attribute message.type, NORMAL without one), as "
            "RocketMQ's proxy does.",
        ),
        "proxyProtocolEnable": SettingSpec.of(True, doc="A PROXY preamble of a load balancer names the client."),
        "channelExpiredTimeout": SettingSpec.of(
            120_000, unit="ms", doc="A client without a heartbeat for so long is removed."
        ),
    }


def _access() -> dict[str, SettingSpec]:
    return {
        "aclEnable": SettingSpec.of(False, doc="Access control by plain_acl.yml (ACL 1.0)."),
        "aclFile": SettingSpec.of(
            "",
            doc="Accounts of ACL 1.0; empty: plain_acl.yml in conf of rocketmqHome; more files in acl beside the file.",
        ),
        "aclTrustProxyProtocol": SettingSpec.of(
            False, doc="White lists and rules compare the address of the PROXY preamble."
        ),
        "authenticationEnabled": SettingSpec.of(False, doc="Access control by users (ACL 2.0)."),
        "authenticationWhitelist": SettingSpec.of("", doc="Request codes without authentication, between commas."),
        "authorizationEnabled": SettingSpec.of(False, doc="Access control by rules (ACL 2.0)."),
        "authorizationWhitelist": SettingSpec.of("", doc="Request codes without authorization, between commas."),
        "initAuthenticationUser": SettingSpec.of("", doc="First user, as JSON with username and password."),
        "innerClientAuthenticationCredentials": SettingSpec.of(
            "", doc="Credentials of this broker at other brokers, as JSON."
        ),
    }


def _tls() -> dict[str, SettingSpec]:
    return {
        "tls.config.file": SettingSpec.of(
            "", doc="File with tls. settings; empty: RocketMQ's tls.properties under etc if present."
        ),
        "tls.server.mode": SettingSpec.of("permissive", doc="disabled, permissive or enforcing."),
        "tls.server.certPath": SettingSpec.of("", doc="Certificate of the server."),
        "tls.server.keyPath": SettingSpec.of("", doc="Key of the server."),
        "tls.server.keyPassword": SettingSpec.of("", doc="Password of the key."),
        "tls.server.trustCertPath": SettingSpec.of("", doc="CA of the clients' certificates."),
        "tls.server.need.client.auth": SettingSpec.of(
            "none", doc="none, optional or require: certificates of clients."
        ),
        "tls.enable": SettingSpec.of(False, doc="TLS for connections to name servers and other brokers."),
        "useTLS": SettingSpec.of(False, doc="The same as tls.enable."),
        "tls.client.certPath": SettingSpec.of("", doc="Certificate for connections to other servers."),
        "tls.client.keyPath": SettingSpec.of("", doc="Key for connections to other servers."),
        "tls.client.keyPassword": SettingSpec.of("", doc="Password of the key."),
        "tls.client.trustCertPath": SettingSpec.of("", doc="CA of the servers' certificates."),
        "tls.client.authServer": SettingSpec.of(False, doc="Check certificates of servers."),
    }
