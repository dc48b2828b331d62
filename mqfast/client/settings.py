"""Arguments of clients: checks, with the nearest name and the limit in the error, and their Java names.

Values are checked before anything is sent. Source: DefaultMQProducer, DefaultMQPushConsumer, ClientConfig, Validators.
"""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from mqfast.client.hooks import ClientHook
from mqfast.client.net.instance import InstanceSettings
from mqfast.client.route.address_map import checked_map
from mqfast.client.route.name_servers import parse_addresses
from mqfast.client.values import Address, Credentials
from mqfast.errors import ClientConfigError
from mqfast.settings.declaration import SettingSpec, check_setting
from mqfast.util.java_text import java_trim, java_whole
from mqfast.util.near_names import did_you_mean

__all__ = [
    "CONSUMER_RULES",
    "NamedArguments",
    "PRODUCER_RULES",
    "check",
    "check_function",
    "check_group",
    "check_hooks",
    "check_names",
    "consumer_arguments",
    "instance_settings",
    "is_coroutine_function",
    "listed",
    "producer_arguments",
]

GROUP_CHARACTERS_MAX: Final = 120
_GROUP_CHARACTERS: Final = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_FRAME_BYTES: Final = 16 << 20


PRODUCER_RULES: Final[Mapping[str, SettingSpec]] = {
    "send_timeout_s": SettingSpec("number", 0.001, 86_400, "seconds"),
    "retries": SettingSpec("int", 0, 100, "attempts after the first one"),
    "retry_other_broker_when_not_ok": SettingSpec("bool"),
    "compress_over_bytes": SettingSpec("int", 0, _FRAME_BYTES, "bytes", optional=True),
    "compression": SettingSpec("str", choices=("zlib", "lz4", "zstd")),
    "compress_level": SettingSpec("int", 0, 22),
    "max_message_bytes": SettingSpec("int", 1, _FRAME_BYTES - 65_536, "bytes"),
    "topic_queues": SettingSpec("int", 1, 65_536, "queues"),
    "create_topic_key": SettingSpec("str"),
    "linger_ms": SettingSpec("number", 0, 60_000, "milliseconds"),
    "batch_bytes": SettingSpec("int", 1, _FRAME_BYTES - 65_536, "bytes"),
    "max_in_flight": SettingSpec("int", 1, 1 << 31, "messages"),
    "max_in_flight_bytes": SettingSpec("int", 1, 1 << 62, "bytes"),
    "close_timeout_s": SettingSpec("number", 0, 86_400, "seconds"),
    "start_timeout_s": SettingSpec("number", 0, 31 * 86_400, "seconds", optional=True),
    "selector": SettingSpec("function", optional=True),
}

CONSUMER_RULES: Final[Mapping[str, SettingSpec]] = {
    "model": SettingSpec("str", choices=("clustering", "broadcasting")),
    "orderly": SettingSpec("bool"),
    "threads": SettingSpec("int", 1, 10_000, "handlers at once"),
    "pull_batch": SettingSpec("int", 1, 1024, "messages"),
    "pull_interval_s": SettingSpec("number", 0, 65.535, "seconds"),
    "max_cached_messages": SettingSpec("int", 1, 65_535, "messages"),
    "max_cached_bytes": SettingSpec("int", 1, 1 << 40, "bytes"),
    "max_span": SettingSpec("int", 1, 65_535, "queue offsets"),
    "max_body_bytes": SettingSpec("int", 1, 1 << 30, "bytes"),
    "consume_timeout_s": SettingSpec("number", 0.001, 86_400 * 30, "seconds"),
    "max_reconsume_times": SettingSpec("int", -1, 1 << 30, "deliveries"),
    "suspend_s": SettingSpec("number", 0.01, 30, "seconds"),
    "close_timeout_s": SettingSpec("number", 0, 86_400, "seconds"),
    "start_timeout_s": SettingSpec("number", 0, 31 * 86_400, "seconds", optional=True),
    "auto_commit_s": SettingSpec("number", 0.1, 86_400, "seconds", optional=True),
}


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an argument that does not exist. Raises: ConfigError with the nearest name."""
    known = list(known)
    for name in given:
        if name not in known:
            raise ClientConfigError(f"{what}: no setting is named {name!r}{did_you_mean(name, known)}")


class NamedArguments:
    """A class whose constructor refuses arguments that do not exist, with the nearest name."""

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        """Check the names. Raises: ConfigError."""
        check_names(cls.__name__, arguments, cls._argument_names())
        return super().__new__(cls)

    @classmethod
    def _argument_names(cls) -> tuple[str, ...]:
        names: list[str] = []
        for base in cls.__mro__:
            code = getattr(base.__dict__.get("__init__"), "__code__", None)
            if code is not None:
                names += code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        return tuple(dict.fromkeys(names))


def check(rules: Mapping[str, SettingSpec], given: Mapping[str, Any]) -> None:
    """Check the values that have a rule. Raises: ConfigError with the name, the limit and the unit."""
    for name, value in given.items():
        spec = rules.get(name)
        if spec is None or (value is None and spec.optional):
            continue
        if spec.kind == "function":
            check_function(name, value)
            continue
        check_setting(name, value, spec, error=ClientConfigError)
        if value == "":
            raise ClientConfigError(f"{name}: expected a text, found an empty one")


def is_coroutine_function(given: object) -> bool:
    """Return whether a call of the function returns a coroutine, as far as can be seen before."""
    return any(map(inspect.iscoroutinefunction, (given, getattr(given, "__call__", None))))  # noqa: B004


def check_function(name: str, given: object) -> None:
    """Check a function that is called, and not awaited. Raises: ConfigError."""
    if not callable(given):
        raise ClientConfigError(f"{name}: expected a function, found {given!r}")
    if is_coroutine_function(given):
        raise ClientConfigError(f"{name}: expected a function, found a coroutine function, which nobody would await")


def check_group(group: object) -> str:
    """Check the name of a group. Raises: ConfigError."""
    if not isinstance(group, str):
        raise ClientConfigError(f"group: expected str, found {type(group).__name__}")
    if not 0 < len(group) <= GROUP_CHARACTERS_MAX or not _GROUP_CHARACTERS.issuperset(group):
        raise ClientConfigError(
            f"group: expected 1 to {GROUP_CHARACTERS_MAX} of the characters a-z, A-Z, 0-9, % | - _, "
            f"found {len(group)}: {group[:140]!r}"
        )
    if group in ("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"):
        raise ClientConfigError(f"group: expected a name of your own, found {group!r}, which RocketMQ reserves")
    return group


def listed(name: str, values: object) -> tuple[Any, ...]:
    """Return the values of an argument that takes several. Raises: ConfigError for a single value."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ClientConfigError(f"{name}: expected a list, found {type(values).__name__}")
    return tuple(values)


def check_hooks(hooks: object) -> tuple[ClientHook, ...]:
    """Return the hooks of a client. Raises: ConfigError."""
    hook_list = listed("hooks", hooks)
    for hook in hook_list:
        if not isinstance(hook, ClientHook):
            raise ClientConfigError(f"hooks: expected ClientHook objects, found {type(hook).__name__}")
        for method in ("before_send", "after_send", "before_consume", "after_consume"):
            check_function(f"hooks: {type(hook).__name__}.{method}", getattr(hook, method))
    return hook_list


def instance_settings(
    namesrv_addr: Address | None,
    *,
    credentials: Credentials | None = None,
    tls: bool | ssl.SSLContext = False,
    namespace: str | None = None,
    instance_name: str | None = None,
    unit_name: str | None = None,
    namespace_v2: str | None = None,
    address_map: Mapping[str, str] | None = None,
) -> InstanceSettings:
    """Return the settings by which clients share connections. Missing credentials come from ROCKETMQ_ACCESS_KEY and
    ROCKETMQ_SECRET_KEY (and ROCKETMQ_SECURITY_TOKEN), where both are set.

    Raises: ConfigError.
    """
    if credentials is None:
        access, secret = os.environ.get("ROCKETMQ_ACCESS_KEY"), os.environ.get("ROCKETMQ_SECRET_KEY")
        if access and secret:
            credentials = Credentials(access, secret, os.environ.get("ROCKETMQ_SECURITY_TOKEN") or None)
    elif not isinstance(credentials, Credentials):
        raise ClientConfigError(f"credentials: expected Credentials, found {type(credentials).__name__}")
    if not isinstance(tls, (bool, ssl.SSLContext)):
        raise ClientConfigError(f"tls: expected True, False or an ssl.SSLContext, found {type(tls).__name__}")
    texts: dict[str, Any] = {
        "namespace": namespace, "instance_name": instance_name, "unit_name": unit_name, "namespace_v2": namespace_v2,
    }  # fmt: skip
    for name, value in texts.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ClientConfigError(f"{name}: expected a text, found {value!r}")
    if not _GROUP_CHARACTERS.issuperset(namespace or ""):
        raise ClientConfigError(f"namespace: expected the characters a-z, A-Z, 0-9, % | - _, found {namespace!r}")
    return InstanceSettings(
        parse_addresses(namesrv_addr), credentials, tls, namespace, instance_name, unit_name, namespace_v2,
        checked_map(address_map),
    )  # fmt: skip


# -- Java's names ------------------------------------------------------------------------------------------------------


class _Java(NamedTuple):
    ours: str
    kind: str = "text"  # text, int, bool, ms (becomes seconds), minutes (become seconds), moment, strategy


_CLIENT_JAVA: Final = {
    "namesrvAddr": _Java("namesrv_addr"),
    "nameServer": _Java("namesrv_addr"),
    "instanceName": _Java("instance_name"),
    "unitName": _Java("unit_name"),
    "namespace": _Java("namespace"),
    "namespaceV2": _Java("namespace_v2"),
    "useTLS": _Java("tls", "bool"),
    "tlsEnable": _Java("tls", "bool"),
    "enableMsgTrace": _Java("trace", "bool"),
    "traceTopic": _Java("trace_topic"),
    "customizedTraceTopic": _Java("trace_topic"),
    "accessKey": _Java("access_key"),
    "secretKey": _Java("secret_key"),
    "securityToken": _Java("security_token"),
}
_PRODUCER_JAVA: Final = {
    **_CLIENT_JAVA,
    "producerGroup": _Java("group"),
    "group": _Java("group"),
    "sendMsgTimeout": _Java("send_timeout_s", "ms"),
    "sendMessageTimeout": _Java("send_timeout_s", "ms"),
    "retryTimesWhenSendFailed": _Java("retries", "int"),
    "retryTimesWhenSendAsyncFailed": _Java("retries", "int"),
    "retryAnotherBrokerWhenNotStoreOK": _Java("retry_other_broker_when_not_ok", "bool"),
    "retryNextServer": _Java("retry_other_broker_when_not_ok", "bool"),
    "compressMsgBodyOverHowmuch": _Java("compress_over_bytes", "int"),
    "compressMessageBodyThreshold": _Java("compress_over_bytes", "int"),
    "compressType": _Java("compression"),
    "compressLevel": _Java("compress_level", "int"),
    "maxMessageSize": _Java("max_message_bytes", "int"),
    "defaultTopicQueueNums": _Java("topic_queues", "int"),
    "createTopicKey": _Java("create_topic_key"),
    "sendLatencyFaultEnable": _Java("latency_fault", "bool"),
    "backPressureForAsyncSendNum": _Java("max_in_flight", "int"),
    "backPressureForAsyncSendSize": _Java("max_in_flight_bytes", "int"),
    "batchMaxBytes": _Java("batch_bytes", "int"),
    "batchMaxDelayMs": _Java("linger_ms", "int"),
}
_CONSUMER_JAVA: Final = {
    **_CLIENT_JAVA,
    "consumerGroup": _Java("group"),
    "group": _Java("group"),
    "messageModel": _Java("model", "lower"),
    "consumeFromWhere": _Java("from_where", "where"),
    "consumeTimestamp": _Java("moment", "moment"),
    "allocateMessageQueueStrategy": _Java("allocation", "strategy"),
    "consumeThreadMin": _Java("threads_min", "int"),
    "consumeThreadMax": _Java("threads", "int"),
    "consumeThreadNumber": _Java("threads", "int"),
    "pullBatchSize": _Java("pull_batch", "int"),
    "pullInterval": _Java("pull_interval_s", "ms"),
    "pullThresholdForQueue": _Java("max_cached_messages", "int"),
    "pullThresholdSizeForQueue": _Java("max_cached_bytes", "mib"),
    "consumeConcurrentlyMaxSpan": _Java("max_span", "int"),
    "consumeTimeout": _Java("consume_timeout_s", "minutes"),
    "maxReconsumeTimes": _Java("max_reconsume_times", "int"),
    "suspendCurrentQueueTimeMillis": _Java("suspend_s", "ms"),
    "awaitTerminationMillisWhenShutdown": _Java("close_timeout_s", "ms"),
}
_WHERE: Final = {
    "CONSUME_FROM_LAST_OFFSET": "latest",
    "CONSUME_FROM_FIRST_OFFSET": "earliest",
    "CONSUME_FROM_TIMESTAMP": "moment",
}
_MOMENT: Final = "%Y%m%d%H%M%S"
_MOMENT_BEFORE_NOW: Final = timedelta(minutes=30)  # Java's default of consumeTimestamp
_STRATEGIES: Final = {
    "AllocateMessageQueueAveragely": "AVG",
    "AllocateMessageQueueAveragelyByCircle": "AVG_BY_CIRCLE",
    "AllocateMessageQueueConsistentHash": "CONSISTENT_HASH",
}
_ELSEWHERE: Final = {"consumeMessageBatchMaxSize": "batch= of on() and subscribe()"}


def producer_arguments(settings: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return the arguments of a producer from Java's settings. Raises: ConfigError for an invalid name or value."""
    return _from_java("producer", settings, _PRODUCER_JAVA)


def consumer_arguments(settings: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return the arguments of a consumer from Java's settings. Raises: ConfigError for an invalid name or value."""
    translated = _from_java("consumer", settings, _CONSUMER_JAVA)
    threads_min, moment = translated.pop("threads_min", None), translated.pop("moment", None)
    if threads_min is not None and threads_min > translated.setdefault("threads", threads_min):
        raise ClientConfigError(
            f"consumeThreadMin: expected at most consumeThreadMax {translated['threads']}, found {threads_min}"
        )
    if translated.get("from_where") == "moment":
        translated["from_where"] = moment or datetime.now().astimezone() - _MOMENT_BEFORE_NOW
    return translated


def _from_java(what: str, settings: Any, table: Mapping[str, _Java]) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise ClientConfigError(f"{what}: expected a mapping of Java's settings, found {type(settings).__name__}")
    for name in settings:
        if name in _ELSEWHERE:
            raise ClientConfigError(f"{what}: {name} is no setting of the {what} here; expected {_ELSEWHERE[name]}")
    check_names(what, settings, table)
    translated: dict[str, Any] = {}
    for name, value in settings.items():
        ours = table[name].ours
        converted = _converted(name, table[name].kind, value)
        if translated.get(ours, converted) != converted:
            raise ClientConfigError(
                f"{name}: expected one value for {ours}, found {translated[ours]!r} and {converted!r}"
            )
        translated[ours] = converted
    if "group" not in translated:
        raise ClientConfigError(f"{what}: expected {what}Group, found none")
    trace_topic = translated.pop("trace_topic", None)
    if trace_topic and translated.get("trace"):
        translated["trace"] = trace_topic
    keys = [translated.pop(name, None) for name in ("access_key", "secret_key", "security_token")]
    if any(keys):
        if not (keys[0] and keys[1]):
            raise ClientConfigError("accessKey and secretKey: expected both, found one")
        translated["credentials"] = Credentials(*keys)
    return translated


def _converted(name: str, kind: str, value: Any) -> Any:
    if kind == "bool":
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise ClientConfigError(f"{name}: expected true or false, found {value!r}")
        return text == "true"
    if kind == "moment":
        try:
            return datetime.strptime(str(value), _MOMENT).astimezone()
        except ValueError:
            raise ClientConfigError(f"{name}: expected a local time as 20260131235959, found {value!r}") from None
    if kind == "strategy":
        return _STRATEGIES.get(str(value).rpartition(".")[2], str(value))
    if kind in ("text", "lower", "where"):
        text = str(value)
        if kind == "where":
            if text not in _WHERE:
                raise ClientConfigError(
                    f"{name}: expected {' or '.join(_WHERE)}, found {text!r}{did_you_mean(text, _WHERE)}"
                )
            return _WHERE[text]
        return text.lower() if kind == "lower" or name == "compressType" else text
    try:
        number = java_whole(java_trim(str(value)))
    except ValueError:
        raise ClientConfigError(f"{name}: expected a whole number, found {value!r}") from None
    if kind == "ms":
        return number / 1000
    return number * {"minutes": 60, "mib": 1 << 20}.get(kind, 1)
