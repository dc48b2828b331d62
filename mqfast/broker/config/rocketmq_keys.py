"""Every property of RocketMQ 5.5.0's broker: name, type and default, as in its classes.

``BrokerConfig`` defines the effect of a property here. Written by reflection over BrokerConfig, BrokerIdentity,
MessageStoreConfig, NettyServerConfig, NettyClientConfig and AuthConfig of the jars on Maven Central;
``tests/interop/test_rocketmq_keys.py`` compares both. A default that depends on the machine is empty.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ROCKETMQ_KEYS", "Key"]


class Key(NamedTuple):
    """A property. Attributes: ``type``: boolean, int, long, double or text (enums as well)."""

    owner: str
    type: str
    default: str


_TYPES: Final = {"b": "boolean", "i": "int", "l": "long", "d": "double", "s": "text"}
# name:type=default, by class; a blank in a default is an underscore.
_TABLE: Final = {
    "BrokerConfig": """
accountStatsEnable:b=true accountStatsPrintZeroValues:b=true ackMessageThreadPoolNums:i=16
ackThreadPoolQueueCapacity:i=100000 aclEnable:b=false adminBrokerThreadPoolNums:i=16
adminBrokerThreadPoolQueueCapacity:i=10000 allowRecallWhenBrokerNotWriteable:b=true appendAckAsync:b=false
appendCkAsync:b=false asyncSendEnable:b=true autoCreateSubscriptionGroup:b=true autoCreateTopicEnable:b=true
autoDeleteUnusedStats:b=true broadcastOffsetExpireMaxSecond:l=300 broadcastOffsetExpireSecond:l=120
brokerClusterName:s=DefaultCluster brokerConfigPath:s= brokerElectionPriority:i=2147483647
brokerFastFailureEnable:b=true brokerHeartbeatInterval:i=1000 brokerIP1:s= brokerIP2:s= brokerId:l=0 brokerName:s=
brokerNotActiveTimeoutMillis:l=10000 brokerPermission:i=6 brokerTopicEnable:b=true cgColdReadThreshold:l=3145728
channelExpiredTimeout:l=120000 checkSyncStateSetPeriod:l=5000 cleanOfflineBrokerInterval:i=30000
clearRetryTopicWhenDeleteTopic:b=true clientManageThreadPoolNums:i=32 clientManagerThreadPoolQueueCapacity:i=1000000
clusterTopicEnable:b=true coldCtrStrategyEnable:b=false commercialBaseCount:i=1 commercialSizePerMsg:i=4096
compatibleWithOldNameSrv:b=true compressedRegister:b=false configBlackList:s=configBlackList;brokerConfigPath
configManagerVersion:s=v1 consumerFallbehindThreshold:l=17179869184 consumerManageThreadPoolNums:i=32
consumerManagerThreadPoolQueueCapacity:i=1000000 consumerOffsetUpdateVersionStep:l=500 controllerAddr:s=
controllerHeartBeatTimeoutMills:l=10000 defaultMessageRequestMode:s=PULL defaultPopShareQueueNum:i=-1
defaultTopicQueueNums:i=8 delayOffsetUpdateVersionStep:l=200 disableConsumeIfConsumerReadSlowly:b=false
enableBroadcastOffsetStore:b=true enableCalcFilterBitMap:b=false enableConnectionMetrics:b=true
enableControllerMode:b=false enableCreateSysGroup:b=true enableDetailStat:b=true enableFastChannelEventProcess:b=false
enableLagAndDlqMetrics:b=true enableLiteEventMode:b=true enableLitePopLog:b=false enableLmqStats:b=false
enableMessageStoreMetrics:b=true enableMixedMessageType:b=false enableNetWorkFlowControl:b=false
enableNotifyAfterPopOrderLockRelease:b=true enableNotifyBeforePopCalculateLag:b=true enablePopBatchAck:b=false
enablePopBufferMerge:b=false enablePopLog:b=false enablePopMessageThreshold:b=false enablePopMetrics:b=true
enablePropertyFilter:b=false enableRegisterProducer:b=true enableRemoteEscape:b=false enableRemotingMetrics:b=true
enableRequestMetrics:b=true enableRetryTopicV2:b=false enableSingleTopicRegister:b=false
enableSkipLongAwaitingAck:b=false enableSlaveActingMaster:b=false enableSplitMetadata:b=true
enableSplitRegistration:b=false enableStatsMetrics:b=true enableTransactionMetrics:b=true
endTransactionPoolQueueCapacity:i=100000 endTransactionThreadPoolNums:i= estimateAccumulation:b=true
expectConsumerNumUseFilter:i=32 fetchControllerAddrByDnsLookup:b=false fetchNameSrvAddrByDnsLookup:b=false
fetchNamesrvAddrByAddressServer:b=false fetchNamesrvAddrInterval:l=10000 filterDataCleanTimeSpan:l=86400000
filterSupportRetry:b=false flushConsumerOffsetHistoryInterval:i=60000 flushConsumerOffsetInterval:i=5000
forceRegister:b=true forwardTimeout:l=3000 globalColdReadThreshold:l=104857600 heartbeatThreadPoolNums:i=
heartbeatThreadPoolQueueCapacity:i=50000 highSpeedMode:b=false inBrokerContainer:b=false
initPopOffsetByCheckMsgInMem:b=true isolateLogEnable:b=false listenPort:i=6888 liteEventCheckInterval:l=10000
liteEventFullDispatchDelayTime:l=10000 liteEventFullDispatchDelayTimeForWildcardGroup:l=10000
liteLagCountMetricsEnable:b=false liteLagLatencyCollectEnable:b=false liteLagLatencyMetricsEnable:b=false
liteLagLatencyTopK:i=50 litePullMessageEnable:b=true litePullMessageThreadPoolNums:i=
litePullThreadPoolQueueCapacity:i=100000 liteSubscriptionCheckInterval:l=120000
liteSubscriptionCheckTimeoutMills:l=180000 liteTtlCheckInterval:l=120000 loadBalancePollNameServerInterval:l=30000
loadBalanceProcessorThreadPoolNums:i=32 loadBalanceThreadPoolQueueCapacity:i=100000 lockInStrictMode:b=false
longPollingEnable:b=true maxClientEventCount:i=100 maxErrorRateOfBloomFilter:i=20 maxLiteSubscriptionCount:l=100000
maxMessageFilterNumForNotification:i=64 maxPopPollingSize:l=100000 maxStatsIdleTimeInMinutes:i=-1
messageStorePlugIn:s= metricGrpcExporterIntervalInMills:l=60000 metricGrpcExporterTimeOutInMills:l=3000
metricLoggingExporterIntervalInMills:l=10000 metricsExportBatchMaxDataPoints:i=1000 metricsExporterType:s=DISABLE
metricsGrpcExporterHeader:s= metricsGrpcExporterTarget:s= metricsInDelta:b=false metricsLabel:s=
metricsOtelCardinalityLimit:i=50000 metricsPromExporterHost:s= metricsPromExporterPort:i=5557 minLiteTTl:l=900000
msgTraceTopicName:s=RMQ_SYS_TRACE_TOPIC namesrvAddr:s= notifyConsumerIdsChangedEnable:b=true
persistConsumerOffsetIncrementally:b=false popCkMaxBufferSize:i=200000 popCkOffsetMaxQueueSize:i=20000
popCkStayBufferTime:i=10000 popCkStayBufferTimeOut:i=3000 popConsumerFSServiceInit:b=true
popConsumerKVServiceEnable:b=false popConsumerKVServiceInit:b=false popConsumerKVServiceLog:b=false
popFromRetryProbability:i=20 popFromRetryProbabilityForPriority:i=0 popInflightMessageThreshold:l=10000
popLongPollingForceNotifyInterval:l=800 popPollingMapExpireTimeSeconds:i=600 popPollingMapSize:i=100000
popPollingSize:i=1024 popResponseReturnActualRetryTopic:b=false popReviveConcurrency:i=32
popReviveMaxAttemptTimes:i=16 popReviveMaxReturnSizePerRead:i=16384 popReviveSkipIfGroupAbsent:b=true
printChannelGroups:b=false printChannelGroupsMinNum:i=5 priorityOrderAsc:b=true processReplyMessageThreadPoolNums:i=
pullMessageThreadPoolNums:i= pullThreadPoolQueueCapacity:i=100000 putMessageFutureThreadPoolNums:i=
putThreadPoolQueueCapacity:i=10000 queryMessageThreadPoolNums:i= queryThreadPoolQueueCapacity:i=20000
realTimeNotifyConsumerChange:b=true recallMessageEnable:b=false recoverConcurrently:b=false recoverThreadPoolNums:i=32
regionId:s=DefaultRegion registerBrokerTimeoutMills:i=24000 registerNameServerPeriod:i=30000
rejectPullConsumerEnable:b=false rejectTransactionMessage:b=false replyThreadPoolQueueCapacity:i=10000
retrieveMessageFromPopRetryTopicV1:b=true reviveAckWaitMs:l=180000 reviveInterval:l=1000 reviveMaxSlow:l=3
reviveQueueNum:i=8 reviveScanTime:l=10000 rocketmqHome:s= sendHeartbeatTimeoutMillis:i=1000
sendMessageThreadPoolNums:i= sendThreadPoolQueueCapacity:i=10000 serverLoadBalancerEnable:b=true
shortPollingTimeMills:l=1000 skipPreOnline:b=false skipWhenCKRePutReachMaxTimes:b=false slaveReadEnable:b=false
splitMetadataSize:i=2000 splitRegistrationSize:i=800 startAcceptSendRequestTimeStamp:l=0
storeReplyMessageEnable:b=true subscriptionExpiredTimeout:l=600000 syncBrokerMemberGroupPeriod:i=1000
syncBrokerMetadataPeriod:l=5000 syncControllerMetadataPeriod:l=10000 traceOn:b=true traceTopicEnable:b=false
transactionCheckInterval:l=30000 transactionCheckMax:i=15 transactionCheckRocksdbCoreThreads:i=2
transactionCheckRocksdbMaxThreads:i=5 transactionCheckRocksdbQueueCapacity:i=2000
transactionMetricFlushInterval:l=10000 transactionOpBatchInterval:i=3000 transactionOpMsgMaxSize:i=4096
transactionTimeOut:l=6000 transferMsgByHeap:b=true updateNameServerAddrPeriod:i=120000
useMessageFilterForNotification:b=true usePIDColdCtrStrategy:b=true useSeparateRetryQueue:b=false
useServerSideResetOffset:b=true useSingleRocksDBForAllConfigs:b=false useStaticSubscription:b=false
validateSystemTopicWhenUpdateTopic:b=true waitTimeMillsInAckQueue:l=3000 waitTimeMillsInAdminBrokerQueue:l=5000
waitTimeMillsInHeartbeatQueue:l=31000 waitTimeMillsInLitePullQueue:l=5000 waitTimeMillsInPullQueue:l=5000
waitTimeMillsInSendQueue:l=200 waitTimeMillsInTransactionQueue:l=3000
""",
    "MessageStoreConfig": """
accessMessageInMemoryHotRatio:i=26 accessMessageInMemoryMaxRatio:i=40 allAckInSyncStateSet:b=false
appendTopicForTimerDeleteKey:b=false asyncLearner:b=false autoMessageVersionOnTopicLen:b=true
batchDispatchRequestThreadPoolNums:i=16 bitMapLengthConsumeQueueExt:i=64
bottomMostCompressionTypeForConsumeQueueStore:s=zstd brokerRole:s=ASYNC_MASTER checkCRCOnRecover:b=true
checkCommitLogOffsetOnRecover:b=false cleanFileForciblyEnable:b=true cleanResourceInterval:i=10000
cleanRocksDBDirtyCQIntervalMin:l=60 cleanSwapedMapInterval:l=300000 coldDataFlowControlEnable:b=false
coldDataScanEnable:b=false combineAssignOffsetCQType:s=default combineCQEnableCheckSelf:b=false
combineCQLoadingCQTypes:s=default;defaultRocksDB combineCQMaxExtraSearchCommitLogFiles:i=3
combineCQPreferCQType:s=default combineCQUseRocksdbForLmq:b=false commitCommitLogLeastPages:i=4
commitCommitLogThoroughInterval:i=200 commitIntervalCommitLog:i=200 commitLogForceSwapMapInterval:l=43200000
commitLogRecoverMaxNum:i=10 commitLogSwapMapInterval:l=3600000 commitLogSwapMapReserveFileNum:i=100
compactionCqMappedFileSize:i=10485760 compactionMappedFileSize:i=104857600 compactionScheduleInternal:i=900000
compactionThreadNum:i=6 correctLogicMinOffsetForceInterval:i=300000 correctLogicMinOffsetSleepInterval:i=1
dLegerGroup:s= dLegerPeers:s= dLegerSelfId:s= dataReadAheadEnable:b=true debugLockEnable:b=false
defaultQueryMaxNum:i=32 deleteCommitLogFilesInterval:i=100 deleteConsumeQueueFilesInterval:i=100
deleteFileBatchMax:i=10 deleteWhen:s=04 destroyMapedFileIntervalForcibly:i=120000 disappearTimeAfterStart:i=-1
diskFallRecorded:b=true diskMaxUsedSpaceRatio:i=75 diskSpaceCleanForciblyRatio:i=85 diskSpaceWarningLevelRatio:i=90
dispatchCqCacheNum:i=4096 dispatchCqThreads:i=10 dispatchFromSenderThread:b=false duplicationEnable:b=false
enableAcceleratedRecovery:b=false enableAsyncReput:b=true enableAutoInSyncReplicas:b=false enableBatchPush:b=false
enableBuildConsumeQueueConcurrently:b=false enableCleanExpiredOffset:b=false enableCompaction:b=true
enableConsumeQueueExt:b=false enableDLegerCommitLog:b=false enableLmq:b=false enableLmqQuota:b=false
enableLogConsumeQueueRepeatedlyBuildWhenRecover:b=false enableMultiDispatch:b=false enableRocksDBLog:b=false
enableRunningFlagsInFlush:b=false enableScheduleAsyncDeliver:b=false enableScheduleMessageStats:b=true
enabledAppendPropCRC:b=false fastFailIfNoBufferInStorePool:b=false fileReservedTime:i=72 flushCommitLogLeastPages:i=4
flushCommitLogThoroughInterval:i=10000 flushCommitLogTimed:b=true flushConsumeQueueLeastPages:i=2
flushConsumeQueueThoroughInterval:i=60000 flushDelayOffsetInterval:l=10000 flushDiskType:s=ASYNC_FLUSH
flushIntervalCommitLog:i=500 flushIntervalConsumeQueue:i=1000 flushLeastPagesWhenWarmMapedFile:i=4096
forceVerifyPropCRC:b=false haFlowControlEnable:b=false haHousekeepingInterval:i=20000 haListenPort:i=10912
haMasterAddress:s= haMaxGapNotInSync:i=268435456 haMaxTimeSlaveNotCatchup:l=15000 haSendHeartbeatInterval:i=5000
haTransferBatchSize:i=32768 inSyncReplicas:i=1 indexFileReadEnable:b=true indexFileWriteEnable:b=true
indexRocksDBEnable:b=false iteratorWhenUseRocksdbConsumeQueue:b=true logicQueueForceSwapMapInterval:l=43200000
logicQueueSwapMapInterval:l=3600000 logicQueueSwapMapReserveFileNum:i=20 logicalDiskSpaceCleanForciblyThreshold:d=0.8
mappedFileSizeCommitLog:i=1073741824 mappedFileSizeConsumeQueue:i=6000000 mappedFileSizeConsumeQueueExt:i=50331648
mappedFileSizeTimerLog:i=104857600 mappedFileSwapEnable:b=true mapperFileSizeBatchConsumeQueue:i=13800000
maxAsyncPutMessageRequests:i=5000 maxBatchDeleteFilesNum:i=50 maxChecksumRange:l=1073741824
maxConsumeQueueScan:i=20000 maxFilterMessageSize:i=16000 maxHaTransferByteInSecond:l=104857600
maxHashSlotNum:i=5000000 maxIndexNum:i=20000000 maxLmqConsumeQueueNum:i=20000 maxMessageSize:i=4194304
maxMsgsNumBatch:i=64 maxOffsetMapSize:i=104857600 maxRecoveryCommitlogFiles:i=30 maxRocksDBIndexQueryDays:i=7
maxSlaveResendLength:l=268435456 maxTopicLength:i=127 maxTransferBytesOnMessageInDisk:i=65536
maxTransferBytesOnMessageInMemory:i=262144 maxTransferCountOnMessageInDisk:i=8 maxTransferCountOnMessageInMemory:i=32
memTableFlushIntervalMs:l=3600000 messageDelayLevel:s=1s_5s_10s_30s_1m_2m_3m_4m_5m_6m_7m_8m_9m_10m_20m_30m_1h_2h
messageIndexEnable:b=true messageIndexSafe:b=false minInSyncReplicas:i=1 offsetCheckInSlave:b=false
osPageCacheBusyTimeOutMills:l=1000 preferredLeaderId:s= pullBatchMaxMessageCount:i=160
putConsumeQueueDataByFileChannel:b=true putMessageTimeout:i=8000 putMsgIndexHightWater:i=600000
readOnlyCommitLogStorePaths:s= readUnCommitted:b=false realTimePersistRocksDBConfig:b=true
recheckReputOffsetFromCq:b=false redeleteHangedFileInterval:i=120000 replicasPerDiskPartition:i=1
rocksdbCQDoubleWriteEnable:b=false rocksdbCompressionType:s=lz4 rocksdbFlushWalFrequency:i=1024
rocksdbWalFileRollingThreshold:l=1073741824 sampleCountThreshold:i=5000 sampleSteps:i=32
scheduleAsyncDeliverMaxPendingLimit:i=2000 scheduleAsyncDeliverMaxResendNum2Blocked:i=3 searchBcqByCacheEnable:b=true
sharedByteBufferNum:i=16 slaveTimeout:i=3000 spinLockCollisionRetreatOptimalDegree:i=1000
statRocksDBCQIntervalSec:l=10 storePathBrokerIdentity:s= storePathCommitLog:s= storePathDLedgerCommitLog:s=
storePathEpochFile:s= storePathRootDir:s= storeType:s=default syncFlushTimeout:i=5000 syncFromLastFile:b=false
syncMasterFlushOffsetWhenStartup:b=false timerCheckMetricsWhen:s=05 timerColdDataCheckIntervalMs:i=60000
timerCongestNumEachSlot:i=2147483647 timerEnableCheckMetrics:b=true timerEnableDisruptor:b=false
timerEnableRetryUntilSuccess:b=false timerFlushIntervalMs:i=1000 timerGetMessageThreadNum:i=3
timerInterceptDelayLevel:b=false timerMaxDelaySec:i=259200 timerMetricSmallThreshold:i=1000000 timerPrecisionMs:i=1000
timerProgressLogIntervalMs:i=10000 timerPutMessageThreadNum:i=3 timerRecallToTimeWheelEnable:b=true
timerRecallToTimelineEnable:b=true timerReputServiceCorePoolSize:i=6 timerReputServiceMaxPoolSize:i=6
timerReputServiceQueueCapacity:i=10000 timerRocksDBEnable:b=false timerRocksDBPrecisionMs:l=1000
timerRocksDBRollIntervalHours:i=1 timerRocksDBRollMaxTps:d=8000.0 timerRocksDBRollRangeHours:i=2
timerRocksDBStopScan:b=false timerRocksDBTimeExpiredMaxTps:d=200000.0 timerRollWindowSlot:i=172800
timerSkipUnknownError:b=false timerStopDequeue:b=false timerStopEnqueue:b=false timerWarmEnable:b=false
timerWheelEnable:b=true timerWheelSnapshotFlush:b=false timerWheelSnapshotIntervalMs:i=10000 topicQueueLockNum:i=32
totalReplicas:i=1 transRocksDBEnable:b=false transWriteOriginTransHalfEnable:b=true transientStorePoolEnable:b=false
transientStorePoolSize:i=5 travelCqFileNumWhenGetMessage:i=1 useABSLock:b=false useReentrantLockWhenPutMessage:b=true
useSeparateStorePathForRocksdbCQ:b=false wakeCommitWhenPutMessage:b=true wakeFlushWhenPutMessage:b=false
warmMapedFileEnable:b=false writeWithoutMmap:b=false
""",
    "NettyServerConfig": """
bindAddress:s=0.0.0.0 enableShutdownGracefully:b=false serverAsyncSemaphoreValue:i=64
serverCallbackExecutorThreads:i=0 serverChannelMaxIdleTimeSeconds:i=120 serverNettyWorkerGroupEnable:b=true
serverOnewaySemaphoreValue:i=256 serverPooledByteBufAllocatorEnable:b=true serverSelectorThreads:i=3
serverSocketBacklog:i=1024 serverSocketRcvBufSize:i=0 serverSocketSndBufSize:i=0 serverWorkerThreads:i=8
shutdownWaitTimeSeconds:i=30 useEpollNativeSelector:b=false writeBufferHighWaterMark:i=0 writeBufferLowWaterMark:i=0
""",
    "NettyClientConfig": """
channelNotActiveInterval:l=60000 clientAsyncSemaphoreValue:i=65535 clientCallbackExecutorThreads:i=
clientChannelMaxIdleTimeSeconds:i=120 clientCloseSocketIfTimeout:b=true clientOnewaySemaphoreValue:i=65535
clientPooledByteBufAllocatorEnable:b=false clientSocketRcvBufSize:i=0 clientSocketSndBufSize:i=0
clientWorkerThreads:i=4 connectTimeoutMillis:i=3000 disableCallbackExecutor:b=false disableNettyWorkerGroup:b=false
enableReconnectForGoAway:b=true maxReconnectIntervalTimeSeconds:l=60 scanAvailableNameSrv:b=true socksProxyConfig:s={}
useTLS:b=false
""",
    "AuthConfig": """
aclCacheExpiredSecond:i=600 aclCacheMaxNum:i=1000 aclCacheRefreshSecond:i=60 authConfigPath:s=
authenticationEnabled:b=false authenticationMetadataProvider:s= authenticationProvider:s= authenticationStrategy:s=
authenticationWhitelist:s= authorizationEnabled:b=false authorizationMetadataProvider:s= authorizationProvider:s=
authorizationStrategy:s= authorizationWhitelist:s= clusterName:s= configName:s= initAuthenticationUser:s=
innerClientAuthenticationCredentials:s= migrateAuthFromV1Enabled:b=false statefulAuthenticationCacheExpiredSecond:i=60
statefulAuthenticationCacheMaxNum:i=10000 statefulAuthorizationCacheExpiredSecond:i=60
statefulAuthorizationCacheMaxNum:i=10000 userCacheExpiredSecond:i=600 userCacheMaxNum:i=1000
userCacheRefreshSecond:i=60
""",
}


def _keys() -> dict[str, Key]:
    keys = {}
    for owner, text in _TABLE.items():
        for word in text.split():
            name, _, rest = word.partition(":")
            keys[name] = Key(
                owner, _TYPES[rest[0]], rest[2:].replace("_", " ") if name == "messageDelayLevel" else rest[2:]
            )
    return keys


ROCKETMQ_KEYS: Final = _keys()
