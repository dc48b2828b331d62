"""The types of the settings that ``mqfast.open`` takes as keywords: our names and RocketMQ's.

For type checkers and completion; ``config.py`` alone defines meaning and range of a setting.
"""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = ["StoreSettings"]


class StoreSettings(TypedDict, total=False):
    """Every keyword of ``mqfast.open`` that is a setting of the store; all are optional."""

    # Written by docs/settings_table.py.
    profile: Literal["embedded", "broker"]
    store_path_root_dir: str | None
    store_path_commit_log: str | None
    read_only_commit_log_store_paths: str | None
    store_type: Literal["default"]
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
    mapped_file_bytes_commit_log: int
    mapped_file_bytes_consume_queue: int
    mapped_file_bytes_batch_consume_queue: int
    mapped_file_bytes_consume_queue_ext: int
    mapped_file_bytes_timer_log: int
    enable_consume_queue_ext: bool
    max_hash_slot_num: int
    max_index_num: int
    max_message_bytes: int
    auto_message_version_on_topic_len: bool
    enabled_append_prop_crc: bool
    force_verify_prop_crc: bool
    enable_lmq: bool
    enable_multi_dispatch: bool
    message_delay_level: str
    store_host: str
    born_host: str
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
    sync_flush_timeout_ms: int
    flush_interval_ms_commit_log: int
    flush_least_pages_commit_log: int
    flush_thorough_interval_ms_commit_log: int
    commit_interval_ms_commit_log: int
    commit_least_pages_commit_log: int
    commit_thorough_interval_ms_commit_log: int
    flush_interval_ms_consume_queue: int
    os_page_cache_busy_timeout_ms: int
    transient_store_pool_enable: bool
    transient_store_pool_size: int
    fast_fail_if_no_buffer_in_store_pool: bool
    warm_mapped_file_enable: bool
    message_index_enable: bool
    index_file_write_enable: bool
    index_file_read_enable: bool
    message_index_safe: bool
    check_crc_on_recover: bool
    read_uncommitted: bool
    max_msgs_num_batch: int
    default_query_max_num: int
    retention: str | None
    file_reserved_time_hours: int
    delete_when: str
    delete_file_batch_max: int
    delete_files_interval_ms_commit_log: int
    destroy_mapped_file_interval_forcibly_ms: int
    redelete_hanged_file_interval_ms: int
    clean_resource_interval_ms: int
    clean_file_forcibly_enable: bool
    disk_max_used_space_percent: int
    disk_space_clean_forcibly_percent: int
    disk_space_warning_level_percent: int
    retention_bytes: int | None
    on_damage: Literal["keep", "stop"]
    retention_when_full: Literal["drop_oldest", "refuse"]
    default_topic_queue_nums: int
    flush_consumer_offset_interval_ms: int
    consumer_offset_update_version_step: int
    dispatch: Literal["inline", "background"]
    prefault_window_bytes: int
    zeros_ahead_bytes: int
    sigbus_guard: bool
    preallocate_files: int
    mlock_budget_bytes: int
    max_mapped_files: int
    storePathRootDir: str | None
    storePathCommitLog: str | None
    readOnlyCommitLogStorePaths: str | None
    storeType: Literal["default"]
    brokerRole: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
    mappedFileSizeCommitLog: int
    mappedFileSizeConsumeQueue: int
    mapperFileSizeBatchConsumeQueue: int
    mappedFileSizeConsumeQueueExt: int
    mappedFileSizeTimerLog: int
    enableConsumeQueueExt: bool
    maxHashSlotNum: int
    maxIndexNum: int
    maxMessageSize: int
    autoMessageVersionOnTopicLen: bool
    enabledAppendPropCRC: bool
    forceVerifyPropCRC: bool
    enableLmq: bool
    enableMultiDispatch: bool
    messageDelayLevel: str
    flushDiskType: Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
    syncFlushTimeout: int
    flushIntervalCommitLog: int
    flushCommitLogLeastPages: int
    flushCommitLogThoroughInterval: int
    commitIntervalCommitLog: int
    commitCommitLogLeastPages: int
    commitCommitLogThoroughInterval: int
    flushIntervalConsumeQueue: int
    osPageCacheBusyTimeOutMills: int
    transientStorePoolEnable: bool
    transientStorePoolSize: int
    fastFailIfNoBufferInStorePool: bool
    warmMapedFileEnable: bool
    messageIndexEnable: bool
    indexFileWriteEnable: bool
    indexFileReadEnable: bool
    messageIndexSafe: bool
    checkCRCOnRecover: bool
    readUnCommitted: bool
    maxMsgsNumBatch: int
    defaultQueryMaxNum: int
    fileReservedTime: int
    deleteWhen: str
    deleteFileBatchMax: int
    deleteCommitLogFilesInterval: int
    destroyMapedFileIntervalForcibly: int
    redeleteHangedFileInterval: int
    cleanResourceInterval: int
    cleanFileForciblyEnable: bool
    diskMaxUsedSpaceRatio: int
    diskSpaceCleanForciblyRatio: int
    diskSpaceWarningLevelRatio: int
    defaultTopicQueueNums: int
    flushConsumerOffsetInterval: int
    consumerOffsetUpdateVersionStep: int
    mapedFileSizeCommitLog: int
    mapedFileSizeConsumeQueue: int
    brokerIP1: str
    listenPort: int
