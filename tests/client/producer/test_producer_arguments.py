"""Arguments that transaction producers pass on to their base class are typed as those of the base class; counters.

Room: tests.
"""

from __future__ import annotations

import inspect
import warnings

from mqfast.client.producer.arguments import Counter, ProducerArguments, ProducerBase
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


def test_a_counter_is_read_without_what_newer_pythons_lack() -> None:
    """The state of itertools.count for pickle is deprecated in Python 3.12, and missing in 3.14."""
    counter = Counter()
    counter.add()
    counter.add_many(41)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counter.value == 42
    assert counter.value == 42
