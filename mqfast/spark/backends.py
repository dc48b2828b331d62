"""The factory of backends: the stores that options name, and the backend of each store.

The only module that imports both kinds of backends. Each kind is imported when options name a store of that kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.errors import ConfigError
from mqfast.spark import options as table

if TYPE_CHECKING:
    from mqfast.spark.backend import Backend
    from mqfast.spark.local.local_backend import LocalBackend
    from mqfast.spark.options import Options

__all__ = ["forget_cluster", "is_unavailable", "known_topics", "open_backend", "open_local", "stores_of"]


def stores_of(options: Options, *, begins: bool = False) -> list[tuple[str, Options]]:
    """Each store that the options name, with the options for it alone: directories, or the brokers of a cluster.

    Args: begins: a read begins here: of a cluster as it is now, not some seconds ago, and the offsets that the options
        name have to be those of brokers that are there.
    Raises: ConfigError; ClientError where no name server answers.
    """
    if options.namesrv is None:
        return table.stores_of(options)
    from mqfast.spark.remote.cluster import brokers_of

    names = brokers_of(options, begins=begins)
    if begins:
        table.check_brokers(options, names)
    return [(name, table.of_broker(options, name)) for name in names]


def forget_cluster(options: Options) -> None:
    """Take nothing that was known of a cluster for true: what is asked next is as it is now."""
    if options.namesrv is not None:
        from mqfast.spark.remote.cluster import RemoteCluster

        RemoteCluster.shared(options).forget()


def known_topics(options: Options) -> list[str]:
    """All topics of the cluster that the options name, for what is near to a wrong name; none for directories."""
    if options.namesrv is None:
        return []
    from mqfast.spark.remote.cluster import RemoteCluster

    return RemoteCluster.shared(options).topics()


def open_backend(options: Options) -> Backend:
    """The one store that the options name; of a cluster the options have to name one broker (``stores_of``).

    Raises: StoreNotFound, ConfigError.
    """
    if options.namesrv is None:
        return open_local(options)
    from mqfast.spark.remote.remote_backend import RemoteBackend

    if options.brokers is None or len(options.brokers) != 1:
        raise ConfigError(f"option brokers: expected the name of one broker, found {options.brokers}")
    return RemoteBackend(options, options.brokers[0])


def open_local(options: Options) -> LocalBackend:
    """The directory that the options name.

    Raises: StoreNotFound, ConfigError for options that name none.
    """
    from mqfast.spark.local.local_backend import LocalBackend

    if options.path is None:
        raise ConfigError("option path: expected the root directory of a store, found none")
    return LocalBackend(options.path, options.store_path_commit_log or ())


def is_unavailable(options: Options, error: Exception) -> bool:
    """Does an error say that a broker is not there now? Directories are always there."""
    if options.namesrv is None:
        return False
    from mqfast.client import cluster

    return cluster.is_unavailable(error)
