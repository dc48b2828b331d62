"""A broker.conf as a Java broker reads it: java.util.Properties makes the lines, RocketMQ's setters take the values.

Room: settings. A value that Java skips without a word is skipped here with a warning; one on which a broker would not
start is an error. It must never know a setting of its own: which names there are, and of what kind, it is told. Source:
java.util.Properties.load, MixAll.properties2Object, BrokerStartup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqfast.errors import ConfigError

__all__ = [
    "KNOWN_TO_ROCKETMQ",
    "BrokerConf",
    "decode_conf",
    "java_number",
    "java_trim",
    "java_whole",
    "parse_properties",
    "read_conf",
]

_I32_MAX: Final = 2**31 - 1
_I64_MAX: Final = 2**63 - 1
_CONTROL: Final = "".join(map(chr, range(33)))  # what String.trim takes away
# Its log is another format in another place.
_OTHER_STORES: Final = ("enableDLegerCommitLog",)
# RocketMQ up to 4.4 knew these; later releases ignore them, and many published files still have them.
_FORMER: Final = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}


class BrokerConf(NamedTuple):
    """What a file says: ``values`` by field and ``hosts`` by property; the names of the rest; what to tell the user."""

    values: dict[str, Any]
    hosts: dict[str, Any]
    without_effect: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]


def java_trim(text: str) -> str:
    """``String.trim``: blanks and control characters at both ends."""
    return text.strip(_CONTROL)


def java_number(text: str, most: int = _I32_MAX) -> int | None:
    """``Integer.parseInt`` or ``Long.parseLong``, by the highest number; None where Java throws."""
    # Java looks at 16-bit units: a digit beyond U+FFFF is none.
    if not re.fullmatch(r"[+-]?\d{1,4000}", text) or any(ord(c) > 0xFFFF for c in text):
        return None
    number = int(text)
    return number if -most - 1 <= number <= most else None


def java_whole(text: str, most: int = _I64_MAX) -> int:
    """Convert a text as ``java_number`` does, of 64 bits unless told. Raises: ValueError where Java throws."""
    number = java_number(text, most)
    if number is None:
        raise ValueError(f"expected a whole number as Java reads it, found {text!r:.80}")
    return number


def decode_conf(data: bytes) -> tuple[str, list[str]]:
    """The text of the file's bytes, which Java takes for ISO-8859-1; and what to tell the user of."""
    text = data.decode("latin-1")
    if text.startswith("\xef\xbb\xbf"):
        return text, ["the file begins with a byte order mark, which Java takes for a part of its first name"]
    return text, []


def _value(key: str, text: str, meta: Mapping[str, Any], warn: Callable[[str], None]) -> Any:
    """The value that Java's setter gets; None where the default stays."""
    kind, found = meta["kind"], java_trim(text)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            warn(f"{key}: expected true or false, found {text!r}; it counts as false, as in Java")
        return text.isascii() and text.lower() == "true"
    if kind == "int":
        number = java_number(text, meta["most"] if meta["most"] > _I32_MAX else _I32_MAX)
        if number is None:
            bits = 64 if meta["most"] > _I32_MAX else 32
            warn(
                f"{key}: expected a whole number of {bits} bits without blanks, found {text[:80]!r}; the default "
                "counts, as in Java"
            )
            return None
        if meta["clamp"]:
            low, high = meta["clamp"]
            if not low <= number <= high:
                moved = min(max(number, low), high)
                warn(f"{key}: {number} is outside {low} to {high} and counts as {moved}")
                return moved
        return number
    if any("\x80" <= c <= "\xff" for c in found):
        warn(f"{key}: found {found!r}, since Java reads the file as ISO-8859-1; write other characters as \\uXXXX")
    if key == "storeType":
        return _store_type(key, found, warn)
    if meta["choices"] and found not in meta["choices"]:
        warn(f"{key}: expected {' or '.join(meta['choices'])}, found {found!r}; the default counts, as in Java")
        return None
    if not found and meta["optional"]:
        warn(f"{key}: expected a value, found none; it counts as not given")
        return None
    return found


def _store_type(key: str, found: str, warn: Callable[[str], None]) -> str:
    if found.lower() == "defaultrocksdb":
        raise ConfigError(f"{key}: expected default, found {found!r}: its queues are another format")
    if found != "default":
        warn(f"{key}: expected default, found {found!r}; it counts as default, as in Java")
    return "default"


def read_conf(
    text: str,
    where: str,
    fields: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]],
    hosts: Mapping[str, str],
    unknown: Callable[[str], str],
) -> BrokerConf:
    """The settings of a property file.

    Args: fields: property -> field; settings: field -> its metadata; hosts: properties that make an address together;
    unknown: what to say of a name that nobody knows.
    Raises: ConfigError for what no broker of this kind of store would start with.
    """
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    addresses: dict[str, Any] = {}
    idle: list[str] = []
    strange: list[str] = []
    warnings: list[str] = []

    def warn(said: str) -> None:
        warnings.append(f"{where}: {said}")

    for key, value_text in parse_properties(text).items():
        field = fields.get(key)
        if key in hosts:
            if key == "listenPort" and java_number(value_text) is None:
                warn(f"{key}: expected a whole number, found {value_text!r}; {hosts[key]} counts, as in Java")
                continue
            addresses[key] = java_number(value_text) if key == "listenPort" else java_trim(value_text)
        elif key in _FORMER:
            idle.append(key)
            warn(f"{key}: no effect, as in RocketMQ since 4.5; the name is {_FORMER[key]}")
        elif field is not None:
            value = _value(key, value_text, settings[field], warn)
            if value is None:
                continue
            if field in values and values[field] != value:
                # Java knows the newer spelling only, which is the one that the table names.
                newer = settings[field]["rocketmq"]
                warn(f"{spelled[field]} and {key} are one setting with two values; that of {newer} counts")
                if key != newer:
                    continue
            values[field], spelled[field] = value, key
        elif key in _OTHER_STORES and java_trim(value_text).lower() == "true":
            raise ConfigError(f"{key}: expected false, found true: its log is another format in another place")
        elif key in KNOWN_TO_ROCKETMQ:
            idle.append(key)
        else:
            strange.append(key)
            warn(unknown(key))
    return BrokerConf(values, addresses, tuple(idle), tuple(strange), tuple(warnings))


_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANK)
        if pending is None and (not line or line[0] in "#!"):
            continue
        tail = len(line) - len(line.rstrip("\\"))
        if tail % 2:
            pending = (pending or "") + line[:-1]
        else:
            lines.append((pending or "") + line)
            pending = None
    if pending is not None:
        lines.append(pending)
    return lines


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        i += 1
        if c != "\\" or i == len(text):
            out.append(c)
            continue
        c = text[i]
        i += 1
        if c != "u":
            out.append(_ESCAPES.get(c, c))
            continue
        digits = text[i : i + 4]
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            raise ConfigError(f"property file: expected four hex digits behind \\u, found {digits!r} in {line!r}")
        out.append(chr(int(digits, 16)))
        i += 4
    # Two escapes may make one character beyond U+FFFF.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a Java property file; a later duplicate wins. Trailing blanks belong to a value.

    Raises: ConfigError for a broken Unicode escape.
    Source: java.util.Properties.load.
    """
    result: dict[str, str] = {}
    for line in _logical_lines(text):
        i = 0
        while i < len(line) and line[i] not in _BLANK and line[i] not in "=:":
            i += 2 if line[i] == "\\" else 1
        key, rest = line[:i], line[i:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        result[_unescape(key, line)] = _unescape(rest, line)
    return result


# Every property that a setter or field of RocketMQ's broker classes knows (MessageStoreConfig, BrokerConfig,
# BrokerIdentity, NettyServerConfig, NettyClientConfig, AuthConfig), releases 4.0 to 5.5.0.
KNOWN_TO_ROCKETMQ: Final = frozenset(
    """
accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable accountStatsPrintZeroValues
ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
aclEnable adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet
allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync appendTopicForTimerDeleteKey asyncLearner
asyncSendEnable authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
authenticationStrategy authenticationWhitelist authorizationEnabled authorizationMetadataProvider
authorizationProvider authorizationStrategy authorizationWhitelist autoCreateSubscriptionGroup autoCreateTopicEnable
autoDeleteUnusedStats autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bindAddress
bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
broadcastOffsetExpireSecond brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable
brokerHeartbeatInterval brokerId brokerIP1 brokerIP2 brokerName brokerNotActiveTimeoutMillis brokerPermission
brokerRole brokerTopicEnable cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval
checkCommitLogOffsetOnRecover checkCRCOnRecover checkSyncStateSetPeriod cleanFileForciblyEnable
cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
clientSocketSndBufSize clientWorkerThreads clusterName clusterTopicEnable coldCtrStrategyEnable
coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf
combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq
commercialBaseCount commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount
commercialTransCount commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval commitLogSwapMapReserveFileNum
compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion configName connectTimeoutMillis
consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval
correctLogicMinOffsetSleepInterval dataReadAheadEnable debugLockEnable defaultMessageRequestMode
defaultPopShareQueueNum defaultQueryMaxNum defaultTopicQueueNums delayOffsetUpdateVersionStep
deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
destroyMapedFileIntervalForcibly disableCallbackExecutor disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup
disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread dLegerGroup dLegerPeers
dLegerSelfId duplicationEnable enableAcceleratedRecovery enableAsyncReput enableAutoInSyncReplicas enableBatchPush
enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerMode enableCreateSysGroup
enabledAppendPropCRC enableDetailStat enableDLegerCommitLog enableFastChannelEventProcess enableLagAndDlqMetrics
enableLiteEventMode enableLitePopLog enableLmq enableLmqQuota enableLmqStats
enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType enableMultiDispatch
enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics enablePropertyFilter
enableReconnectForGoAway enableRegisterProducer enableRemoteEscape enableRemotingMetrics enableRequestMetrics
enableRetryTopicV2 enableRocksDBLog enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster
enableSplitMetadata enableSplitRegistration enableStatsMetrics enableTransactionMetrics enableTransparentRetry
endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup fetchNamesrvAddrByAddressServer
fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval fileReservedTime filterDataCleanTimeSpan filterServerNums
filterSupportRetry flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC forwardTimeout globalColdReadThreshold
haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer indexFileReadEnable indexFileWriteEnable
indexRocksDBEnable initAuthenticationUser initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials
inSyncReplicas isolateLogEnable iteratorWhenUseRocksdbConsumeQueue listenPort liteEventCheckInterval
liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK litePullMessageEnable
litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval logicQueueSwapMapInterval
logicQueueSwapMapReserveFileNum longPollingEnable mapedFileSizeCommitLog mapedFileSizeConsumeQueue
mappedFileSizeCommitLog mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
maxChecksumRange maxClientEventCount maxConsumeQueueScan maxDelayTime maxErrorRateOfBloomFilter maxFilterMessageSize
maxHashSlotNum maxHaTransferByteInSecond maxIndexNum maxLiteSubscriptionCount maxLmqConsumeQueueNum
maxMessageFilterNumForNotification maxMessageSize maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize
maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays maxSlaveResendLength
maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory memTableFlushInterval memTableFlushIntervalMs
messageDelayLevel messageIndexEnable messageIndexSafe messageStorePlugIn metricGrpcExporterIntervalInMills
metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled
minInSyncReplicas minLiteTTl msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable offsetCheckInSlave
osPageCacheBusyTimeOutMills persistConsumerOffsetIncrementally popCkMaxBufferSize popCkOffsetMaxQueueSize
popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability popFromRetryProbabilityForPriority
popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes
popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent preferredLeaderId printChannelGroups
printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums pullBatchMaxMessageCount
pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
queryMessageThreadPoolNums queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths readUnCommitted
realTimeNotifyConsumerChange realTimePersistRocksDBConfig recallMessageEnable recheckReputOffsetFromCq
recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval regionId registerBrokerTimeoutMills
registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage replicasPerDiskPartition
replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow
reviveQueueNum reviveScanTime rocketmqHome rocksdbCompressionType rocksdbCQDoubleWriteEnable
rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scanAvailableNameSrv
scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable serverNettyWorkerGroupEnable
serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads sharedByteBufferNum shortPollingTimeMills
shutdownWaitTimeSeconds skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable slaveTimeout socksProxyConfig
spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec storePathBrokerIdentity storePathCommitLog
storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeReplyMessageEnable storeType
subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
syncFlushTimeout syncFromLastFile syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen
timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec
timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum
timerRecallToTimelineEnable timerRecallToTimeWheelEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
timerRollWindowSlot timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable
timerWheelSnapshotFlush timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas traceOn traceTopicEnable
transactionCheckInterval transactionCheckMax transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval transactionOpBatchInterval
transactionOpMsgMaxSize transactionTimeOut transferMsgByHeap transientStorePoolEnable transientStorePoolSize
transRocksDBEnable transWriteOriginTransHalfEnable travelCqFileNumWhenGetMessage updateNameServerAddrPeriod
useABSLock useEpollNativeSelector useMessageFilterForNotification usePIDColdCtrStrategy userCacheExpiredSecond
userCacheMaxNum userCacheRefreshSecond useReentrantLockWhenPutMessage useSeparateRetryQueue
useSeparateStorePathForRocksdbCQ useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription useTLS
validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
""".split()  # noqa: SIM905 - a list literal would be four times as long and no clearer
)
