"""Arguments that transaction producers pass on to their base class are typed as those of the base class.

Room: tests.
"""

from __future__ import annotations

import inspect

from mqfast.client.producer.arguments import ProducerArguments, ProducerBase
from mqfast.client.producer.transaction import AsyncTransactionProducer, TransactionProducer


def test_the_typed_arguments_are_the_keywords_of_a_producer() -> None:
    keywords = {
        name: parameter.annotation
        for name, parameter in inspect.signature(ProducerBase.__init__).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert keywords == {name: hint.__forward_arg__ for name, hint in ProducerArguments.__annotations__.items()}


def test_both_transaction_producers_take_the_typed_arguments() -> None:
    for kind in (TransactionProducer, AsyncTransactionProducer):
        passed_on = inspect.signature(kind.__init__).parameters["producer_arguments"]
        assert passed_on.annotation == "Unpack[ProducerArguments]"
