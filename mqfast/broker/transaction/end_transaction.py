"""37: a producer ends a transaction, or reports the state of a checked transaction.

A committed message is stored in its topic, and a mark ends the half message. No transaction is committed twice, and no
transaction is marked before the message is stored. Source: EndTransactionProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from mqfast import properties as names
from mqfast.broker.acl.required_permissions import of_message
from mqfast.broker.acl.terms import Action
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import HALF_TOPIC
from mqfast.broker.send.header_fields import flag, text, whole
from mqfast.broker.send.restored_message import get_by_offset, put_copy
from mqfast.broker.transaction.half_message import COMMIT, ROLLBACK, TRANSACTION_MASK, committed, key_of
from mqfast.broker.transaction.open_transactions import OpenTransactions
from mqfast.errors import CallRefused
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.schedule.delay_levels import real_place
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.record.record import StoredMessage
from mqfast.util.java_text import java_number
from mqfast.util.log_limit import LogLimit

__all__ = ["EndTransaction"]

_NOT_FOUND: Final = "Find prepared transaction message failed"
_SECONDS_MAX: Final = 2**63 - 1
_LATER: Final = (names.DELAY, "TIMER_")


class EndTransaction:
    """Serves 37.

    Args: open_transactions: the open half messages. Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext, open_transactions: OpenTransactions) -> None:
        self._context = context
        self._halves = open_transactions
        self._log = LogLimit(logging.getLogger("mqfast.broker"))

    def end_transaction(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Serve 37. Raises: FieldError, CallRefused. Returns: None for an unknown state, which RocketMQ does not
        answer.
        """
        if self._context.config.is_slave:
            raise CallRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "")  # a slave cannot store a mark
        log = self._context.engine.log
        place = whole(request, "commitLogOffset")
        needed = max(place + 1, self._halves.stored_again_end)
        # With sync flush, or with a transient store pool, a producer may be faster than the disk.
        if log.readable < needed <= log.written:
            return self._end_later(needed, channel, request)
        return self._end_transaction(channel, request)

    async def _end_later(self, needed: int, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        await self._context.durable.wait(needed)
        return self._end_transaction(channel, request)

    def _end_transaction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        context = self._context
        kind = whole(request, "commitOrRollback")
        place, offset = whole(request, "commitLogOffset"), whole(request, "tranStateTableOffset")
        group, is_from_check = text(request, "producerGroup"), flag(request, "fromTransactionCheck")
        if kind not in (COMMIT, ROLLBACK):
            self._log.info(
                "pending", "the producer %s:%d does not know how a transaction ends: group %s, message %s: %s",
                *channel.peer, group, request.ext_fields.get("msgId"), request.remark,
            )  # fmt: skip
            return None
        half = get_by_offset(context, place)
        if half is None or half.topic != HALF_TOPIC:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        context.rights.demand(channel, request, of_message(half, Action.PUB))
        pairs = half.properties
        if not is_from_check and self._is_too_late(half, pairs):
            return request.response(ResponseCode.ILLEGAL_OPERATION)
        if pairs.get(names.PGROUP) != group:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.record_queue_offset != offset:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        newest = self._halves.newest(half)
        if newest is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "The transaction has ended already")
        if newest != offset:  # a check has stored the half message once more since
            other = self._halves.read(newest)
            if other is None:
                raise CallRefused(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            half, pairs = other, other.properties
        if kind == COMMIT:
            self._commit(half, pairs)
        self._halves.end_all([newest], key_of(pairs))
        context.stats.add("COMMIT_NUMS" if kind == COMMIT else "ROLLBACK_NUMS", pairs.get(names.REAL_TOPIC, ""))
        return request.response()

    def _is_too_late(self, half: StoredMessage, pairs: dict[str, str]) -> bool:
        """Return True after the time that the producer asked for; then a check decides."""
        wanted = pairs.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if not wanted:
            return False
        seconds = java_number(wanted, _SECONDS_MAX)
        min_ms = int(self._context.config["transactionTimeOut"])
        allowed = min_ms if seconds is None else max(seconds * 1000, min_ms)
        return self._context.now_ms() - half.born_timestamp > allowed

    def _commit(self, half: StoredMessage, pairs: dict[str, str]) -> None:
        place = real_place(pairs)
        if place is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "expected REAL_TOPIC and REAL_QID, found none")
        now, when_parked = committed(pairs)
        again = put_copy(
            self._context, half, *place, now,
            sys_flag=half.sys_flag & ~TRANSACTION_MASK | COMMIT, prepared_transaction_offset=half.physical_offset,
            when_parked=when_parked, may_be_parked=any(name.startswith(_LATER) for name in pairs),
        )  # fmt: skip
        if again.refusal is not None:
            raise CallRefused(*again.refusal)
        if again.result is None:
            raise CallRefused(*self._failure(again.status))

    def _failure(self, status: PutMessageStatus) -> tuple[int, str]:
        """Return RocketMQ's code and text. Source: EndTransactionProcessor.sendFinalMessage."""
        if status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED:
            return ResponseCode.SYSTEM_ERROR, "Create mapped file failed."
        if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
            max_bytes = self._context.store.config.max_message_bytes
            return ResponseCode.MESSAGE_ILLEGAL, (
                "The message is illegal, maybe msg body or properties length not matched. msg body length limit "
                f"{max_bytes}B, msg properties length limit 32KB."
            )
        if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."
        if status is PutMessageStatus.OS_PAGE_CACHE_BUSY:
            return ResponseCode.SYSTEM_ERROR, "OS page cache busy, please try another machine"
        return ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"
