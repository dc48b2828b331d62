"""Status codes of RocketMQ's gRPC API, and the statuses of answers. Source: definition.proto, ResponseBuilder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqfast.errors import CallRefused, FieldError
from mqfast.grpc.messages import Status
from mqfast.remoting.codes import ResponseCode

__all__ = ["OK", "Code", "Refused", "failure_of", "overall", "status_of"]


class Code:
    """The codes that this broker answers with."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    FAILED_TO_CONSUME_MESSAGE = 60000


OK: Final = Status(Code.OK, "OK")
_ACL_ERROR: Final = "org.apache.rocketmq.acl."
_OF_REMOTING: Final = {
    int(ResponseCode.SUCCESS): Code.OK,
    int(ResponseCode.SYSTEM_BUSY): Code.TOO_MANY_REQUESTS,
    int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED): Code.NOT_IMPLEMENTED,
    int(ResponseCode.NO_PERMISSION): Code.FORBIDDEN,
    int(ResponseCode.TOPIC_NOT_EXIST): Code.TOPIC_NOT_FOUND,
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): Code.CONSUMER_GROUP_NOT_FOUND,
    int(ResponseCode.SUBSCRIPTION_PARSE_FAILED): Code.ILLEGAL_FILTER_EXPRESSION,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): Code.MASTER_PERSISTENCE_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): Code.SLAVE_PERSISTENCE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): Code.HA_NOT_AVAILABLE,
}


class Refused(Exception):
    """A request that is answered with a code of the API.

    Args: code: of Code; text: what was expected and found.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def status_of(code: int, remark: str | None) -> Status:
    """Return the status for a code and remark of remoting."""
    if code == ResponseCode.SUCCESS:
        return OK
    text = remark or ""
    if text.startswith(_ACL_ERROR):
        return Status(Code.UNAUTHORIZED, text)
    return Status(_OF_REMOTING.get(code, Code.INTERNAL_SERVER_ERROR), text)


def failure_of(error: Exception) -> Status | None:
    """Return the status for an error of the client's request; None for other errors."""
    if isinstance(error, Refused):
        return Status(error.code, error.text)
    if isinstance(error, CallRefused):
        return status_of(error.code, error.remark)
    if isinstance(error, FieldError):
        return Status(Code.BAD_REQUEST, str(error))
    return None


def overall(statuses: Iterable[Status]) -> Status:
    """Return the common status of entries, MULTIPLE_RESULTS for different codes."""
    given = list(statuses)
    if all(status.code == given[0].code for status in given):
        return given[0]
    return Status(Code.MULTIPLE_RESULTS, "the entries have different codes")
