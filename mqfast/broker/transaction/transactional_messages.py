"""Transactions in a broker: 37 ends a transaction, 323 resumes the checks, and checks run in rounds.

Source: TransactionalMessageCheckService, AdminBrokerProcessor.resumeCheckHalfMessage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from mqfast.broker.send.header_fields import text
from mqfast.broker.send.restored_message import get_by_offset, put_copy
from mqfast.broker.transaction.end_transaction import EndTransaction
from mqfast.broker.transaction.half_message import key_of
from mqfast.broker.transaction.open_transactions import OpenTransactions
from mqfast.broker.transaction.transaction_check import TransactionCheck
from mqfast.errors import CallRefused, OffsetError
from mqfast.message import decode_message_id
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["Transactions"]

_log = logging.getLogger("mqfast.broker")


class Transactions:
    """Serves 37 and 323, and checks open transactions.

    Attributes: ``open_transactions``: the open half messages; ``check``: the rounds, for tests with another clock.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.open_transactions: Final = OpenTransactions(context)
        self.check: Final = TransactionCheck(context, self.open_transactions)
        self._end = EndTransaction(context, self.open_transactions)
        self._context = context
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self.open_transactions.load()

    def register(self, processors: Processors) -> None:
        """Register the handlers; ends of transactions do not wait behind sends."""
        lane = ConcurrencyLimit("endTransaction", concurrency=100_000, queue_max=100_000)
        processors.register([RequestCode.END_TRANSACTION], self._end.end_transaction, lane)
        processors.register([RequestCode.RESUME_CHECK_HALF_MESSAGE], self.resume, lane)

    def start(self) -> None:
        """Start the checks, at the interval of the settings."""
        interval_s = self._context.config["transactionCheckInterval"] / 1000
        self._timer = self._context.loop.call_later(interval_s, self._begin_round)

    async def stop(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        self.open_transactions.write_marks()

    def _begin_round(self) -> None:
        self.start()
        if self._round is None or self._round.done():
            self._round = self._context.loop.create_task(self._check())

    async def _check(self) -> None:
        try:
            await self.check.round()
        except Exception:
            _log.exception("a round of checks of transactions failed, the next one tries again")

    def resume(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 323: check a given up message again from the start. Raises: FieldError, CallRefused."""
        message_id = text(request, "msgId")
        try:
            place = decode_message_id(message_id).physical_offset
        except OffsetError:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"expected a message id, found {message_id}") from None
        message = get_by_offset(self._context, place)
        if message is None or message.topic != CHECK_MAX_TIME_TOPIC:
            raise CallRefused(
                ResponseCode.SYSTEM_ERROR, f"expected a message of {CHECK_MAX_TIME_TOPIC} there, found none"
            )
        pairs = {**message.properties, names.TRANSACTION_CHECK_TIMES: "0"}
        if self.open_transactions.newest(message) is not None:
            return request.response()  # resumed before
        again = put_copy(self._context, message, HALF_TOPIC, 0, pairs, may_be_parked=False)
        if again.result is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed.")
        self.open_transactions.stored_again(key_of(pairs), again.result)
        return request.response()
