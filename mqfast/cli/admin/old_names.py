"""The command names of RocketMQ's mqadmin, with their flags: each runs the work of a noun form.

A line of mqadmin is accepted unchanged, and a change is made at once; ``--dry-run`` shows the change. A flag without a
counterpart is an error, never ignored in silence. A name that is not here says so, with an exit code of its own.
Source: MQAdminStartup of RocketMQ 5.5.0, and its ACL commands of 4.9.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from mqfast.cli.admin.commands import AdminCommands, later
from mqfast.cli.arguments import Parser, time_ms, within_calendar
from mqfast.cli.exit_codes import ExitCode

__all__ = ["ABSENT", "OLD", "Old", "add_commands"]


class Old(NamedTuple):
    """A name of mqadmin.

    Attributes: noun: the noun form; work: ``module:function``; flags: ``short/long>destination:type=default``, ``!``
        behind a required flag; destination ``_``: no effect here, and not needed; ``-``: refused. changes: whether
        data or settings change; fixed: arguments of the noun form that the line does not have.
    """

    noun: str
    work: str
    flags: str = ""
    changes: bool = False
    fixed: Mapping[str, Any] = {}


_PLACE: Final = "b/brokerAddr>broker c/clusterName>cluster "
_TIMES: Final = "b/beginTimestamp>begin:time e/endTimestamp>end:time "
_PRINT: Final = "c/charsetName>_ s/subExpression>tags=* " + _TIMES + "d/printBody>body:body=true "
_ALL: Final = 1 << 62
_FIND_MAX: Final = 1 << 20
_NO_PLACE: Final = {"broker": None, "cluster": None}

OLD: Final[dict[str, Old]] = {
    # --- topics ---
    "updateTopic": Old(
        "topic create", "topics:create",
        _PLACE + "a/attributes>kind:kind=+message.type=NORMAL t/topic>topic! r/readQueueNums>queues:int=8 "
        "w/writeQueueNums>write_queues:int p/perm>perm:perm=6 o/order>order:bool=false u/unit>- s/hasUnitSub>-",
        True, {"allow_shrink": False},
    ),
    "updateTopicPerm": Old(
        "topic set --perm", "topics:change", _PLACE + "t/topic>topic! p/perm>perm:perm!", True,
        {"queues": None, "write_queues": None, "kind": None, "allow_shrink": False},
    ),
    "updateTopicList": Old("topic create", "topics:create_listed", _PLACE + "f/filename>file!", True),
    "deleteTopic": Old("topic delete", "topics:delete", "t/topic>topic! c/clusterName>cluster", True),
    "topicList": Old("topic ls", "old_work:topics", "c/clusterModel>more:flag", False, {"all": True, "cluster": None}),
    "topicClusterList": Old("topic route", "topics:where", "t/topic>topic!"),
    "topicRoute": Old("topic route", "topics:route", "t/topic>topic! l/list>_:flag"),
    "topicStatus": Old("topic show", "topics:show", "t/topic>topic! c/cluster>_"),
    # --- clusters and brokers ---
    "clusterList": Old(
        "cluster ls --more", "cluster:ls", "m/moreStats>_:flag i/interval>- c/clusterName>cluster", False,
        {"more": True},
    ),
    "brokerStatus": Old("broker runtime", "old_work:runtimes", _PLACE),
    "getBrokerConfig": Old("broker config get", "old_work:configs", _PLACE),
    "updateBrokerConfig": Old(
        "broker config set", "old_work:change_setting", _PLACE + "a/updateAllBroker>_ k/key>key! v/value>value!", True
    ),
    "wipeWritePerm": Old("broker drain", "old_work:wipe", "b/brokerName>broker!", True),
    "addWritePerm": Old("broker undrain", "brokers:undrain", "b/brokerName>broker!", True),
    "brokerConsumeStats": Old(
        "group ls", "brokers:consume_stats", "b/brokerAddr>broker! t/timeoutMillis>_ l/level>level:int=0 o/order>_"
    ),
    "haStatus": Old("ha status", "old_work:ha", "c/clusterName>cluster b/brokerAddr>broker i/interval>-"),
    "cleanExpiredCQ": Old(
        "broker clean BROKER queues", "old_work:clean", "b/brokerAddr>broker c/cluster>cluster", True,
        {"what": "queues"},
    ),
    "cleanUnusedTopic": Old(
        "broker clean BROKER topics", "old_work:clean", "b/brokerAddr>broker c/cluster>cluster", True,
        {"what": "topics"},
    ),
    "deleteExpiredCommitLog": Old(
        "broker clean BROKER log", "old_work:clean", "b/brokerAddr>broker c/cluster>cluster", True, {"what": "log"}
    ),
    "statsAll": Old("top", "old_work:stats_all", "a/activeTopic>active:flag t/topic>topic"),
    "clusterRT": Old(
        "bench", "old_work:round_trips",
        "a/amount>amount:int=100 s/size>size:int=128 c/cluster>cluster p/print_log>_ m/machine_room>_ i/interval>_",
        False, {"topic": None, "broker": None},
    ),
    "checkMsgSendRT": Old(
        "bench", "old_work:round_trips", "t/topic>topic! a/amount>amount:int=100 s/size>size:int=128", False, _NO_PLACE
    ),
    "sendMsgStatus": Old(
        "bench", "old_work:round_trips", "b/brokerName>topic! s/messageSize>size:int=128 c/count>amount:int=50",
        False, _NO_PLACE,
    ),
    # --- groups and clients ---
    "consumerProgress": Old(
        "group show", "old_work:progress", "g/groupName>group t/topicName>topic s/showClientIP>_ c/cluster>_", False,
        {"all": False, "max_lag": None},
    ),
    "consumerConnection": Old("group members", "groups:members", "g/consumerGroup>group! b/brokerAddr>_"),
    "consumerStatus": Old(
        "group status", "groups:status", "g/consumerGroup>group! i/clientId>client b/brokerAddr>_ s/jstack>stack:flag"
    ),
    "getConsumerConfig": Old("group show", "groups:settings", "g/groupName>group!"),
    "producerConnection": Old("producers", "groups:producers", "g/producerGroup>group! t/topic>_!"),
    "producer": Old("producers", "groups:producers", "b/broker>_!", False, {"group": None}),
    "updateSubGroup": Old(
        "group create", "old_work:group",
        _PLACE + "g/groupName>group! s/consumeEnable>set_consumeEnable:bool "
        "m/consumeFromMinEnable>set_consumeFromMinEnable:bool d/consumeBroadcastEnable>set_consumeBroadcastEnable:bool "
        "o/consumeMessageOrderly>set_consumeMessageOrderly:bool q/retryQueueNums>set_retryQueueNums:int "
        "r/retryMaxTimes>set_retryMaxTimes:int p/groupRetryPolicy>- i/brokerId>set_brokerId:int "
        "w/whichBrokerWhenConsumeSlowly>set_whichBrokerWhenConsumeSlowly:int "
        "a/notifyConsumerIdsChanged>set_notifyConsumerIdsChangedEnable:bool /attributes>-",
        True,
    ),
    "updateSubGroupList": Old("group create", "groups:create_listed", _PLACE + "f/filename>file!", True),
    "deleteSubGroup": Old(
        "group delete --topics", "groups:delete",
        "b/brokerAddr>- c/clusterName>cluster g/groupName>group! r/removeOffset>offsets:bool=false", True,
        {"topics": True},
    ),
    "resetOffsetByTime": Old(
        "group reset", "old_work:reset",
        "g/group>group! t/topic>topic! s/timestamp>to:target! f/force>_ c/cluster>_ b/broker>broker q/queue>queue:int "
        "o/offset>offset:int",
        True,
    ),
    "skipAccumulatedMessage": Old(
        "group reset --to latest", "offsets:reset", "g/group>group! t/topic>topic! f/force>_ c/cluster>_", True,
        {"to": ("end", "latest"), "queue": None, "broker": None, "to_time": None, "to_offset": None},
    ),
    "cloneGroupOffset": Old(
        "group copy", "offsets:copy", "s/srcGroup>source! d/destGroup>group! t/topic>topic! o/offline>_", True
    ),
    # --- messages ---
    "queryMsgById": Old(
        "message find --id", "old_work:find",
        "t/topic>topic! i/msgId>id! g/consumerGroup>group d/clientId>client s/sendMessage>- u/unitName>_ "
        "f/bodyFormat>_ c/cluster>_",
        False, {"key": None, "begin": None, "end": None, "max": _FIND_MAX, "body": "auto"},
    ),
    "queryMsgByUniqueKey": Old(
        "message find --id", "old_work:find",
        "i/msgId>id! g/consumerGroup>group d/clientId>client t/topic>topic! a/showAll>_:flag c/cluster>_ "
        "s/startTime>begin:time e/endTime>end:time",
        False, {"key": None, "max": _FIND_MAX, "body": "auto"},
    ),
    "queryMsgByKey": Old(
        "message find --key", "messages:find",
        "t/topic>topic! k/msgKey>key! " + _TIMES + "m/maxNum>max:int=64 c/cluster>_ p/keyType>- l/lastKey>-", False,
        {"id": None, "body": "auto"},
    ),
    "queryMsgByOffset": Old(
        "message show", "messages:show",
        "t/topic>topic! b/brokerName>broker! i/queueId>queue:int! o/offset>offset:int! f/bodyFormat>_ r/routeTopic>_",
        False, {"body": "auto"},
    ),
    "queryMsgTraceById": Old(
        "message trace", "messages:trace",
        "i/msgId>id! t/traceTopic>trace_topic b/beginTimestamp>_ e/endTimestamp>_ c/maxNum>_",
    ),
    "printMsg": Old(
        "message cat", "messages:cat", "t/topic>topic! " + _PRINT + "l/lmqParentTopic>-", False, {"max": _ALL}
    ),
    "printMsgByQueue": Old(
        "message cat --queue", "messages:cat",
        "t/topic>topic! a/brokerName>broker! i/queueId>queue:int! " + _PRINT + "p/print_msg>_ f/calculate>-", False,
        {"max": _ALL},
    ),
    "consumeMessage": Old(
        "message cat", "messages:cat",
        "t/topic>topic! b/brokerName>broker i/queueId>queue:int o/offset>offset:int g/consumerGroup>_ "
        "s/beginTimestamp>begin:time e/endTimestamp>end:time c/MessageNumber>max:int=128",
        False, {"tags": "*", "body": "auto"},
    ),
    "sendMessage": Old(
        "message send", "messages:send",
        "t/topic>topic! p/body>text! k/key>keys c/tags>tags b/broker>broker i/qid>queue:int "
        "m/msgTraceEnable>trace:bool=false",
        False, {"property": [], "delay": None, "delay_level": None},
    ),
    # --- name servers ---
    "updateKvConfig": Old(
        "namesrv set-value", "name_servers:set_value", "s/namespace>namespace! k/key>key! v/value>value!", True
    ),
    "deleteKvConfig": Old(
        "namesrv delete-value", "name_servers:set_value", "s/namespace>namespace! k/key>key!", True
    ),
    "updateOrderConf": Old(
        "namesrv set-value", "name_servers:order", "t/topic>topic! v/orderConf>value m/method>method!", True
    ),
    "getNamesrvConfig": Old("namesrv config", "name_servers:config"),
    "updateNamesrvConfig": Old(
        "namesrv set", "old_work:change_name_servers", "k/key>key! v/value>value!", True
    ),
    # --- export ---
    "exportMetadata": Old(
        "cluster export", "old_work:export",
        "c/clusterName>_ b/brokerAddr>_ f/filePath>directory=/tmp/rocketmq/export t/topic>-:flag "
        "g/subscriptionGroup>-:flag s/specialTopic>all:flag",
        False,
    ),
    "exportConfigs": Old(
        "cluster export", "old_work:export", "c/clusterName>_! f/filePath>directory=/tmp/rocketmq/export", False,
        {"all": False},
    ),
    # --- access control ---
    "createUser": Old(
        "acl user create", "access:user_create",
        _PLACE + "u/username>name! p/password>password! t/userType>user_type", True,
    ),
    "updateUser": Old(
        "acl user set", "access:user_set",
        _PLACE + "u/username>name! p/password>password t/userType>user_type s/userStatus>status", True,
        {"password_file": None},
    ),
    "deleteUser": Old("acl user delete", "access:user_delete", _PLACE + "u/username>name!", True),
    "getUser": Old("acl user ls", "access:users", _PLACE + "u/username>name="),
    "listUser": Old("acl user ls", "access:users", _PLACE + "f/filter>name="),
    "copyUser": Old(
        "acl copy", "access:copy", "f/fromBroker>source! t/toBroker>target! u/usernames>user:list", True,
        {"password_file": None},
    ),
    "createAcl": Old(
        "acl rule set", "access:rule_set",
        _PLACE + "s/subject>subject! r/resources>resource:list! a/actions>action:list! i/sourceIp>address:list= "
        "d/decision>decision!",
        True,
    ),
    "updateAcl": Old(
        "acl rule set", "access:rule_set",
        _PLACE + "s/subject>subject! r/resources>resource:list! a/actions>action:list! i/sourceIp>address:list= "
        "d/decision>decision!",
        True,
    ),
    "deleteAcl": Old(
        "acl rule delete", "access:rule_delete", _PLACE + "s/subject>subject! r/resources>resource", True
    ),
    "getAcl": Old("acl rule ls", "access:rules", _PLACE + "s/subject>subject=", False, {"resource": ""}),
    "listAcl": Old("acl rule ls", "access:rules", _PLACE + "s/subject>subject= r/resource>resource="),
    "copyAcl": Old(
        "acl copy", "access:copy", "f/fromBroker>source! t/toBroker>target! s/subjects>user:subjects", True,
        {"password_file": None},
    ),
    "updateAclConfig": Old(
        "acl account set", "old_work:account",
        _PLACE + "a/accessKey>name! s/secretKey>set_secretKey! w/whiteRemoteAddress>set_whiteRemoteAddress "
        "i/defaultTopicPerm>set_defaultTopicPerm u/defaultGroupPerm>set_defaultGroupPerm t/topicPerms>set_topicPerms "
        "g/groupPerms>set_groupPerms m/admin>set_admin",
        True, {"password_file": None},
    ),
    "deleteAclConfig": Old("acl account delete", "access:account_delete", _PLACE + "a/accessKey>name!", True),
    "getAclConfig": Old("acl account ls", "access:accounts", _PLACE),
    "clusterAclConfigVersion": Old("acl account version", "access:version", _PLACE),
    "updateGlobalWhiteAddr": Old(
        "acl account white-list", "access:white_list",
        _PLACE + "g/globalWhiteRemoteAddresses>addresses:list! p/aclFileFullPath>file", True,
    ),
}  # fmt: skip

ABSENT: Final = (
    "addBroker", "removeBroker", "resetMasterFlushOffset", "setConsumeMode", "startMonitoring", "allocateMQ",
    "queryCq", "updateStaticTopic", "remappingStaticTopic", "exportMetrics", "exportMetadataInRocksDB",
    "exportPopRecord", "getSyncStateSet", "getBrokerEpoch", "getControllerMetaData", "getControllerConfig",
    "updateControllerConfig", "electMaster", "cleanBrokerMetadata", "dumpCompactionLog", "getColdDataFlowCtrInfo",
    "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode",
    "rocksDBConfigToJson", "checkRocksdbCqWriteProgress", "switchTimerEngine", "getBrokerLiteInfo",
    "getParentTopicInfo", "getLiteTopicInfo", "getLiteClientInfo", "getLiteGroupInfo", "triggerLiteDispatch",
    "getConsumerStatus",
)  # fmt: skip
"""Commands of mqadmin that are not here: static topics, controller, container, POP, cold data, lite topics."""


# --- types of flags ---

_JAVA_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}")


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() == "true"


def _perm(text: str) -> str:
    known = {"2": "w", "4": "r", "6": "rw"}
    if text not in known:
        raise argparse.ArgumentTypeError(f"expected 2 (write), 4 (read) or 6, found {text!r}")
    return known[text]


def _kind(text: str) -> str:
    if not (kind := re.fullmatch(r"\+message\.type=(\w+)", text)):
        raise argparse.ArgumentTypeError(
            f"expected +message.type=KIND, found {text!r}; use RocketMQ's mqadmin for others"
        )
    return kind[1]


def _time(text: str) -> int:
    if _JAVA_TIME.fullmatch(text):
        return within_calendar(round(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000))
    return time_ms(text)


def _target(text: str) -> tuple[str, Any]:
    """Return the target of a reset: -1 is the end, -2 the first message, else a time."""
    if text in ("-1", "-2"):
        return "end", "latest" if text == "-1" else "earliest"
    if text == "0":
        return "end", "earliest"
    return "time", _time(text)


def _body(text: str) -> str:
    return "auto" if _bool(text) else "none"


def _list(text: str) -> list[str]:
    return [word.strip() for word in re.split("[,;]", text) if word.strip()]


def _subjects(text: str) -> list[str]:
    return [word.removeprefix("User:") for word in _list(text)]


_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "": str, "int": int, "bool": _bool, "perm": _perm, "kind": _kind, "time": _time, "target": _target, "body": _body,
    "list": _list, "subjects": _subjects,
}  # fmt: skip
_FLAG: Final = re.compile(r"(\w*)/(\w+)>(-|\w+)(?::(\w+))?(!)?(?:=(\S*))?")


class _Refuse(argparse.Action):
    """A flag of mqadmin that has no counterpart here."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        parser.error(f"{option}: not here; use RocketMQ's mqadmin for this flag")


def add_commands(commands: AdminCommands) -> None:
    """Add all names, those that are not here as well."""
    for name, old in OLD.items():
        more = f"The noun form: mqfast {'' if old.noun.startswith(('ha', 'bench')) else 'admin '}{old.noun}."
        commands.add(
            name, later(old.work), f"RocketMQ's {name}", _filled(old), example=_example(old), more=more,
            changes=old.changes, owns_key="/key>" in old.flags, hidden=True, at_once=True,
        )  # fmt: skip
    for name in ABSENT:
        commands.add_absent(name, _absent(name))


def _example(old: Old) -> str:
    words = [
        f"-{short or '-' + long} {_VALUES.get(long, long.upper())}"
        for short, long, _, _, is_required, _ in _FLAG.findall(old.flags) if is_required
    ]  # fmt: skip
    return " ".join(["-n 127.0.0.1:9876", *words])


_VALUES: Final = {
    "topic": "orders", "groupName": "billing", "group": "billing", "consumerGroup": "billing", "perm": "6",
    "timestamp": "now", "queueId": "0", "offset": "17", "method": "get", "decision": "Allow", "actions": "Pub",
    "resources": "Topic:orders", "subject": "User:alice", "brokerName": "broker-a", "msgKey": "order-7",
}  # fmt: skip


def _filled(old: Old) -> Callable[[Parser], None]:
    def fill(sub: Parser) -> None:
        for short, long, destination, kind, is_required, default in _FLAG.findall(old.flags):
            names = [f"-{short}"] * bool(short) + [f"--{long}"]
            if destination == "-":
                count = 0 if kind == "flag" else None
                sub.add_argument(*names, dest=f"refused_{long}", action=_Refuse, help=argparse.SUPPRESS, nargs=count)
            elif kind == "flag":
                sub.add_argument(*names, dest=_destination(destination, long), action="store_true", help=long)
            else:
                of_type = _TYPES[kind]
                has_default = default or f"{long}>{destination}{':' + kind if kind else ''}=" in old.flags
                sub.add_argument(
                    *names, dest=_destination(destination, long), type=of_type, required=bool(is_required),
                    metavar=long.upper(), default=default if has_default else None,  # argparse applies the type
                    help="no effect here" if destination == "_" else long,
                )  # fmt: skip
        sub.set_defaults(**old.fixed)

    return fill


def _destination(destination: str, long: str) -> str:
    return f"without_effect_{long}" if destination == "_" else destination


def _absent(name: str) -> Callable[[argparse.Namespace], ExitCode]:
    def run(arguments: argparse.Namespace) -> ExitCode:
        import sys

        print(f"mqfast: {name} is not here: use RocketMQ's mqadmin {name}", file=sys.stderr)
        return ExitCode.NOT_HERE

    return run
