"""The state that the parts of a pull consumer share: settings, subscriptions and the prefetch buffer."""

from __future__ import annotations

from typing import NamedTuple

from mqfast.client.consumer.pull.prefetch_buffer import PrefetchBuffer
from mqfast.client.consumer.pull.settings import PullSettings
from mqfast.client.consumer.subscription import Subscription

__all__ = ["PullState"]


class PullState(NamedTuple):
    """The state of one pull consumer.

    Attributes: group: on the wire; subscriptions: topic on the wire -> subscription, changed by the assignment.
    """

    settings: PullSettings
    group: str
    cache: PrefetchBuffer
    subscriptions: dict[str, Subscription]
