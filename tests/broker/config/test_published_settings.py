"""Settings as files that were published have them, read as RocketMQ 5.5.0 reads them.

Each row is the facts of one file or of several like it: names and values that tutorials, images and RocketMQ's own
``conf`` directory use, mistakes included. RocketMQ takes a name for which its classes have a setter, by
``Integer.parseInt`` and its kind, and ignores every other name; ``ROCKETMQ_KEYS`` was written by reflection over them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.config.rocketmq_keys import ROCKETMQ_KEYS
from mqfast.util.java_text import java_number, java_trim
from mqfast.util.property_file import parse_properties

BASE = "brokerClusterName=rocketmq-cluster|brokerName=broker-a|brokerId=0|deleteWhen=04|"
PATHS = (
    "storePathRootDir=/data/store|storePathCommitLog=/data/store/commitlog|storePathConsumeQueue=/data/store/consumequeue|"
    "storePathIndex=/data/store/index|storeCheckpoint=/data/store/checkpoint|abortFile=/data/store/abort|"
)
QUEUES = "defaultTopicQueueNums=4|autoCreateTopicEnable=true|autoCreateSubscriptionGroup=true|listenPort=10911|"
SIZES = "mapedFileSizeCommitLog=1073741824|mapedFileSizeConsumeQueue=300000|"
POOLS = "sendMessageThreadPoolNums=128|pullMessageThreadPoolNums=128|"
FLUSH = (
    "flushCommitLogLeastPages=4|flushConsumeQueueLeastPages=2|flushCommitLogThoroughInterval=10000|"
    "flushConsumeQueueThoroughInterval=60000|"
)
FILES = [
    "brokerClusterName = DefaultCluster|brokerName = broker-a|brokerId = 0|deleteWhen = 04|fileReservedTime = 48|"
    "brokerRole = ASYNC_MASTER|flushDiskType = ASYNC_FLUSH",
    BASE + "fileReservedTime=48|brokerRole=ASYNC_MASTER|flushDiskType=ASYNC_FLUSH",
    BASE + "fileReservedTime=48|brokerRole=SYNC_MASTER|flushDiskType=ASYNC_FLUSH",
    BASE + "fileReservedTime=48|brokerRole=SYNC_MASTER|flushDiskType=SYNC_FLUSH|",
    BASE + "brokerId=1|brokerRole=SLAVE|fileReservedTime=48|flushDiskType=ASYNC_FLUSH",
    BASE + "namesrvAddr=worker1:9876;worker2:9876;worker3:9876|fileReservedTime=120|" + PATHS + QUEUES,
    BASE + "namesrvAddr=rocketmq-nameserver1:9876;rocketmq-nameserver2:9876|" + QUEUES + SIZES + PATHS,
    BASE + "namesrvAddr=ip1:9876,ip2:9876|listenPort=9876|fileReservedTime=24|mapedFileSizeConsumeQueue=8000000",
    BASE + QUEUES + SIZES + "destroyMapedFileIntervalForcibly=120000|redeleteHangedFileInterval=120000",
    BASE + "diskMaxUsedSpaceRatio=88|maxMessageSize=65536|" + FLUSH,
    BASE + "diskMaxUsedSpaceRatio=100|maxMessageSize=65536|",
    BASE + "diskMaxUsedSpaceRatio=5|",
    BASE + "checkTransactionMessageEnable=false|" + POOLS + FLUSH,
    BASE + "brokerIP1=localhost|",
    BASE + "brokerIP1=192.168.1.10|brokerIP2=192.168.1.11|haListenPort=10912|",
    BASE + "brokerIP1=10.8.20.102|haHousekeepingInterval=20000|haSendHeartbeatInterval=1000|brokerRole=ASYNC_MASTER",
    BASE + "traceTopicEnable=true|msgTraceTopicName=my_trace|enablePropertyFilter=true|",
    BASE + "enablePropertyFilter = true |",
    BASE + "autoCreateTopicEnable=TRUE|autoCreateSubscriptionGroup=False|",
    BASE + "aclEnable=false|waitTimeMillsInSendQueue=1000|osPageCacheBusyTimeOutMills=5000|",
    BASE + "useReentrantLockWhenPutMessage=true|warmMapedFileEnable=false|transferMsgByHeap=false|" + POOLS,
    BASE + "transientStorePoolEnable=true|transientStorePoolSize=5|flushDiskType=ASYNC_FLUSH|",
    BASE + "transientStorePoolEnable=false|slaveReadEnable=true|cleanFileForciblyEnable=true|",
    BASE + "messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h 1d|",
    BASE + "longPollingEnable=true|shortPollingTimeMills=1000|notifyConsumerIdsChangedEnable=true|",
    BASE + "serverSelectorThreads=3|serverWorkerThreads=8|serverChannelMaxIdleTimeSeconds=120|",
    BASE + "serverSocketSndBufSize=131072|serverSocketRcvBufSize=131072|serverPooledByteBufAllocatorEnable=true|",
    BASE + "serverSelectorThread=3|serverSocketSndBufsize=2048|serverAsyncSemaphoreValue=256|",
    BASE + "clientPooledByteBufAllocatorEnable=true|compressedRegister=true|forceRegister=true|",
    BASE + "registerNameServerPeriod=30000|registerBrokerTimeoutMills=6000|brokerPermission=6|",
    BASE + "deleteWhen=02|deleteWhen=04|fileReservedTime=72|fileReservedTime=48|",
    BASE + "fileReservedTime=120 |deleteWhen=00|",
    BASE + "transactionTimeOut=6000|transactionCheckMax=15|transactionCheckInterval=60000|",
    BASE + "enableMultiDispatch=true|enableLmq=true|",
    BASE + "timerWheelEnable=true|timerMaxDelaySec=259200|timerPrecisionMs=1000|enableControllerMode=false|",
    BASE + "inSyncReplicas=2|minInSyncReplicas=1|totalReplicas=2|allAckInSyncStateSet=false|slaveTimeout=3000|",
    BASE + "storeType=default|indexFileReadEnable=true|indexFileWriteEnable=true|",
    BASE + "enableDLegerCommitLog=false|dLegerGroup=RaftNode00|dLegerPeers=n0-127.0.0.1:40911|dLegerSelfId=n0|",
    BASE + "popPollingSize=1024|enablePopLog=false|popConsumerKVServiceEnable=false|",
    BASE + "defaultMessageRequestMode=PULL|recallMessageEnable=true|enableCreateSysGroup=true|",
    BASE + "metricsExporterType=DISABLE|metricsPromExporterPort=5557|",
    BASE + "rejectTransactionMessage=true|fetchNamesrvAddrByAddressServer=false|regionId=cn-east|traceOn=true|",
    BASE + "litePullMessageEnable=true|useServerSideResetOffset=true|",
    BASE + "maxTransferBytesOnMessageInMemory=262144|maxTransferCountOnMessageInMemory=32|",
    BASE + "maxTransferBytesOnMessageInDisk=65536|maxTransferCountOnMessageInDisk=8|",
    BASE + "accessMessageInMemoryMaxRatio=40|messageIndexEnable=true|maxHashSlotNum=5000000|maxIndexNum=20000000|",
    BASE + "flushIntervalCommitLog=500|flushCommitLogTimed=true|commitIntervalCommitLog=200|",
    BASE + "flushConsumerOffsetInterval=5000|flushDelayOffsetInterval=10000|syncFlushTimeout=5000|",
    BASE + "mappedFileSizeCommitLog=1073741824|mappedFileSizeConsumeQueue=6000000|",
    BASE + "mappedFileSizeCommitLog=134217728|mapedFileSizeCommitLog=1073741824|",
    BASE + "brokerFastFailureEnable=false|sendThreadPoolQueueCapacity=100000|pullThreadPoolQueueCapacity=100000|",
]  # fmt: skip
# A master has id 0, as BrokerStartup sets; addresses and paths have rules of their own.
SET_LATER = {"brokerId"}
# RocketMQ moves these into a range when it reads them.
CLAMPS = {"diskMaxUsedSpaceRatio": (10, 95)}


def java_reading(text: str) -> dict[str, str]:
    """Name -> value of what RocketMQ's setters take of a file."""
    found = {}
    for name, value in parse_properties(text).items():
        key = ROCKETMQ_KEYS.get(name)
        if key is None or name in SET_LATER:
            continue
        if key.type in ("int", "long"):
            number = java_number(java_trim(value))
            if number is not None and java_number(value) is not None:
                low, high = CLAMPS.get(name, (number, number))
                found[name] = str(min(max(number, low), high))
        elif key.type == "boolean":
            found[name] = "true" if value.lower() == "true" else "false"
        else:
            found[name] = java_trim(value)
    return found


@pytest.mark.parametrize("facts", FILES, ids=range(len(FILES)))
def test_a_published_file_means_what_it_means_to_rocketmq(tmp_path: Path, facts: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("\n".join(facts.split("|")) + "\n")
    config = BrokerConfig()
    config.read_file(path)
    shown = parse_properties(config.text())
    read = java_reading(path.read_text())
    differences = {name: (value, shown.get(name)) for name, value in read.items() if shown.get(name) != value}
    differences.pop("enableDLegerCommitLog", None)  # never shown: a broker with true does not start
    assert differences == DIFFERENT.get(facts.removeprefix(BASE), {})
    ignored = parse_properties(path.read_text()).keys() - ROCKETMQ_KEYS.keys()
    assert not {name for name in ignored if config.acts(name) and name not in FORMER}, "what RocketMQ ignores acts here"
    default = parse_properties(BrokerConfig().text())
    sizes = {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"} - read.keys()
    assert {name: shown[name] for name in sizes} == {name: default[name] for name in sizes}


FORMER = {"mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue"}
# docs/broker.md names these: blanks around true are taken off here, and RocketMQ reads false.
DIFFERENT = {
    "enablePropertyFilter = true |": {"enablePropertyFilter": ("false", "true")},
}
