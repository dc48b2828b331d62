"""The source or target of a job: the directory of a store, or the brokers of a running cluster.

Jobs take STORE or --namesrv, and use them through the options of the source. A secret is never printed. Uses no
network.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from mqfast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ClusterLocation",
    "Place",
    "add_cluster",
    "add_place",
    "as_options",
    "directory",
    "name_of",
    "place_of",
    "queue_ends",
]

# Argument, option of the source, placeholder (None for a switch), help.
_ARGUMENTS: Final = (
    ("brokers", "brokers", "A,B", "only these brokers of the cluster"),
    ("namespace", "namespace", "NAME", "namespace of topics and groups"),
    ("namespace-v2", "namespaceV2", "NAME", "namespace of RocketMQ 5, a field of every request"),
    ("access-key", "accessKey", "KEY", "access key (or ROCKETMQ_ACCESS_KEY)"),
    ("secret-key", "secretKey", "KEY", "secret key (better: ROCKETMQ_SECRET_KEY, which other users do not see)"),
    ("security-token", "securityToken", "TEXT", "token of temporary keys (or ROCKETMQ_SECURITY_TOKEN)"),
    ("tls", "tls", None, "connect with TLS"),
    ("tls-ca", "tlsCa", "FILE", "certificates that sign those of the servers"),
    ("tls-cert", "tlsCert", "FILE", "the client's own certificate"),
    ("tls-key", "tlsKey", "FILE", "the key of that certificate"),
    ("broker-timeout", "brokerTimeout", "TIME", "how long a broker that is away is asked again (default: 60s)"),
)


@dataclass(frozen=True)
class ClusterLocation:
    """A running cluster; ``namesrv``: ``host:9876;host2:9876``; ``options``: other options of the source, by name."""

    namesrv: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


Place: TypeAlias = str | ClusterLocation
"""A directory, or a cluster."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a cluster."""
    group = parser.add_argument_group("a running cluster, over the network")
    group.add_argument("--namesrv", metavar="HOST:PORT", help="its name servers, separated by semicolons")
    for name, _, placeholder, text in _ARGUMENTS:
        if placeholder is None:
            group.add_argument(f"--{name}", action="store_true", help=text)
        else:
            group.add_argument(f"--{name}", metavar=placeholder, help=text)


def add_place(parser: argparse.ArgumentParser, text: str) -> None:
    """Add STORE, or the arguments of a cluster instead."""
    parser.add_argument("store", nargs="?", metavar="STORE", help=f"{text}; or --namesrv")
    add_cluster(parser)


def place_of(a: argparse.Namespace, name: str = "store") -> Place:
    """Return the location of a command line; ``name``: of the argument with the directory.

    Raises: UsageError unless exactly one of both is given.
    """
    path: str | None = getattr(a, name)
    given = {name: getattr(a, name.replace("-", "_")) for name, *_ in _ARGUMENTS}
    if a.namesrv is None:
        for other, value in given.items():
            if value:
                raise UsageError(f"--{other}: it goes with --namesrv")
        if path is None:
            raise UsageError(f"expected {name.upper()} or --namesrv, found neither")
        return path
    if path is not None:
        raise UsageError(f"expected {name.upper()} or --namesrv, found both")
    options = tuple((option, str(given[name]).lower() if given[name] is True else str(given[name]))
                    for name, option, *_ in _ARGUMENTS if given[name])  # fmt: skip
    return ClusterLocation(a.namesrv, options)


def as_options(place: Place) -> dict[str, str]:
    """Return the options of the source and of the sink for a location."""
    if isinstance(place, ClusterLocation):
        return {"namesrv": place.namesrv, **dict(place.options)}
    return {"path": os.path.abspath(place)}


def name_of(place: Place) -> str:
    """Return the name of a location in reports."""
    return place.namesrv if isinstance(place, ClusterLocation) else place


def directory(place: Place, job: str, why: str) -> str:
    """Return the directory of a store, for a job that needs files. Raises: UsageError for a cluster."""
    if isinstance(place, ClusterLocation):
        raise UsageError(
            f"{job}: expected the directory of a store, found --namesrv: {why}, which brokers do not hand out; run the "
            "job where the files of the broker are"
        )
    return place


def queue_ends(queues: DataFrame) -> str:
    """Return ending offsets from rows of the view ``queues`` with their store."""
    ends: dict[str, dict[str, int]] = {}
    for row in queues.collect():
        ends.setdefault(row["store"], {})[f"{row['topic']}/{row['queueId']}"] = row["maxOffset"]
    return json.dumps(ends)
