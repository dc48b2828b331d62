"""Asks producers for the state of open transactions (39), in rounds; gives up transactions without an answer.

A check does not block the loop for longer than a slice, asks about no young transaction, and passes a half message only
after that message was stored elsewhere. Source: TransactionalMessageServiceImpl.check,
AbstractTransactionalMessageCheckListener, DefaultTransactionalMessageCheckListener.

A checked half message is stored once more, with the number of checks, so that the progress of the queue can advance.
The broker's clock gives the age, from the first store time; RocketMQ trusts the producer's clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mqfast import properties as names
from mqfast.broker.acl.required_permissions import Need, of_message
from mqfast.broker.acl.terms import Action
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from mqfast.broker.send.restored_message import MessageCopy, put_copy
from mqfast.broker.transaction.half_message import check_body, checked, key_of, times_checked
from mqfast.broker.transaction.open_transactions import OpenTransactions
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.schedule.delay_levels import real_place
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.put.put_result import PutResult
from mqfast.store.record.record import StoredMessage
from mqfast.util.java_text import java_number
from mqfast.util.log_limit import LogLimit

__all__ = ["TransactionCheck"]

_TURN_S: Final = 0.002
_ENDED_AT_ONCE: Final = 1024  # ended half messages between two reads of the clock
_TRIES: Final = 3
_UNSENT_MAX: Final = 8 << 20  # a producer that does not read is asked later
_HOUR_MS: Final = 3_600_000
_OF_THE_MESSAGE: Final = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
_SECONDS_MAX: Final = 2**63 - 1


class _Question(NamedTuple):
    """A check that a producer is to get."""

    half: StoredMessage
    pairs: dict[str, str]
    stored: PutResult


class TransactionCheck:
    """The rounds of checks.

    Args: open_transactions: the open half messages; clock: a monotonic clock in seconds, which ends a slice.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        open_transactions: OpenTransactions,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._context = context
        self._clock = clock or time.perf_counter
        self._halves = open_transactions
        self._log = LogLimit(logging.getLogger("mqfast.broker"))
        self._seen_end = 0  # half messages below existed before the last round

    async def round(self) -> int:
        """Check every open transaction once. Returns: the number of producers that were asked."""
        context, open_transactions = self._context, self._halves
        start_ms = context.now_ms()
        open_transactions.write_marks()
        offset, end = open_transactions.progress, open_transactions.end
        seen, self._seen_end = self._seen_end, end
        asked = 0
        while offset < end and not context.stopping.is_set():
            done: list[int] = []
            questions: list[_Question] = []
            next_offset = self._check_slice(offset, end, seen, start_ms, done, questions)
            if done:
                open_transactions.moved_all(done)
            if questions and not await self._are_readable(questions):
                break  # left to the next round
            asked += sum(map(self._send_check, questions))
            await asyncio.sleep(0)
            if next_offset is None:
                break
            offset = max(next_offset, open_transactions.progress)
        return asked

    def _check_slice(
        self, offset: int, end: int, seen: int, start_ms: int, done: list[int], questions: list[_Question]
    ) -> int | None:
        """Check half messages for one slice. Returns: the next offset; None at the end of the round."""
        until = self._clock() + _TURN_S
        while offset < end:
            is_open = self._halves.is_open(offset)
            if is_open and not self._check_half(offset, seen, start_ms, done, questions):
                return None
            offset += 1
            if (is_open or offset % _ENDED_AT_ONCE == 0) and self._clock() >= until:
                break
        return offset

    def _check_half(self, offset: int, seen: int, start_ms: int, done: list[int], questions: list[_Question]) -> bool:
        """Check an open half message. Returns: False ends the round."""
        half = self._halves.read(offset)
        if half is None:
            self._log.warning("gone", "the half message at queue offset %d cannot be read: it has ended", offset)
            done.append(offset)
            return True
        pairs = half.properties
        config = self._context.config
        times = times_checked(pairs)
        kept_ms = self._context.store.config.file_reserved_time_hours * _HOUR_MS
        if (times is not None and times >= config["transactionCheckMax"]) or start_ms - half.store_timestamp > kept_ms:
            return self._give_up(offset, half, pairs, done)
        if half.store_timestamp >= start_ms and offset >= seen:
            return False  # too new; after a clock change, half messages of an earlier round are not new
        age_ms = start_ms - self._first_stored_ms(half, pairs)
        wanted = pairs.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
        seconds = java_number(wanted, _SECONDS_MAX) if wanted else None
        immune_ms = int(config["transactionTimeOut"]) if seconds is None or seconds == -1 else seconds * 1000
        if 0 <= age_ms <= immune_ms:
            if wanted is None:
                return False
            return self._move(offset, half, pairs, done)
        again = self._store(half, checked(pairs))
        if again.result is None:
            return self._is_left(offset, again.status)
        done.append(offset)
        questions.append(_Question(half, checked(pairs), again.result))
        return True

    def _first_stored_ms(self, half: StoredMessage, pairs: dict[str, str]) -> int:
        """Return the begin of the transaction: the store time of the first half message."""
        first = java_number(pairs.get(names.TRAN_PREPARED_QUEUE_OFFSET, ""), _SECONDS_MAX)
        if first is None or not 0 <= first < half.record_queue_offset:
            return half.store_timestamp
        first_half = self._halves.read(first)
        if first_half is None or key_of(first_half.properties) != key_of(pairs):
            return half.born_timestamp
        return first_half.store_timestamp

    # --- storing half messages again ---

    def _store(self, half: StoredMessage, pairs: dict[str, str]) -> MessageCopy:
        again = put_copy(self._context, half, HALF_TOPIC, 0, pairs, may_be_parked=False)
        if again.result is not None:
            self._halves.stored_again(key_of(pairs), again.result)
        return again

    def _is_left(self, offset: int, status: PutMessageStatus) -> bool:
        """Log that a half message could not be stored once more, and stays open. Returns: False ends the round."""
        if status not in _OF_THE_MESSAGE:
            return False
        self._log.warning(
            "left", "the half message at queue offset %d cannot be stored with the count of its checks (%s): nobody is "
            "asked, and it stays open until its producer ends the transaction, or fileReservedTime is over",
            offset, status.name,
        )  # fmt: skip
        return True

    def _move(self, offset: int, half: StoredMessage, pairs: dict[str, str], done: list[int]) -> bool:
        """Store a half message that may not be checked yet behind the others."""
        moved = {**pairs}
        moved.setdefault(names.TRAN_PREPARED_QUEUE_OFFSET, str(offset))
        again = self._store(half, moved)
        if again.result is None:
            return self._is_left(offset, again.status)
        done.append(offset)
        return True

    def _give_up(self, offset: int, half: StoredMessage, pairs: dict[str, str], done: list[int]) -> bool:
        context = self._context
        context.topics.ensure(CHECK_MAX_TIME_TOPIC, 1)
        if put_copy(context, half, CHECK_MAX_TIME_TOPIC, 0, pairs, may_be_parked=False).result is None:
            return False
        logging.getLogger("mqfast.broker").error(
            "a transaction was checked %s times without an answer, or is older than fileReservedTime: its message is "
            "in %s now; group %s, topic %s, message %s",
            pairs.get(names.TRANSACTION_CHECK_TIMES, 0), CHECK_MAX_TIME_TOPIC, pairs.get(names.PGROUP),
            pairs.get(names.REAL_TOPIC), pairs.get(names.UNIQ_KEY),
        )  # fmt: skip
        self._halves.forget(key_of(pairs), [offset])
        done.append(offset)
        return True

    # --- the check request ---

    async def _are_readable(self, questions: list[_Question]) -> bool:
        """Wait until the half messages are durable: with sync flush an earlier answer is useless."""
        log = self._context.engine.log
        last = questions[-1].stored
        end = last.physical_offset + last.size
        return log.readable >= end or await self._context.durable.wait(end)

    def _send_check(self, question: _Question) -> bool:
        pairs, stored = question.pairs, question.stored
        group = pairs.get(names.PGROUP, "")
        channel = self._channel(group, of_message(question.half, Action.PUB))
        if channel is None or real_place(pairs) is None:
            self._log.warning("nobody", "a transaction of group %s is open, and no producer of it can be asked", group)
            return False
        unique = pairs.get(names.UNIQ_KEY)
        fields = {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(stored.queue_offset),
            "commitLogOffset": str(stored.physical_offset),
            "offsetMsgId": stored.message_id,
            "bname": self._context.config["brokerName"],
        }
        if unique is not None:
            fields |= {"msgId": unique, "transactionId": unique}
        body = check_body(question.half, pairs, stored.queue_offset, stored.physical_offset)
        channel.oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, body)
        return True

    def _channel(self, group: str, need: Need) -> Channel | None:
        """Return a connection of the group whose account may publish to the topic, since any account may join a
        group.
        """
        rights = self._context.rights
        for _ in range(_TRIES):
            channel = self._context.producers.pick(group, lambda caller: rights.may(caller, need))
            if isinstance(channel, Channel) and not channel.is_closed and channel.unsent_bytes < _UNSENT_MAX:
                return channel
        return None
