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
    """Return each store that the options name, with the options for that store: directories, or brokers of a cluster.

    Args: begins: the read begins here: cached cluster data is discarded, and the offsets in the options must name
        brokers of the cluster.
    Raises: ConfigError; ClientError if no name server answers.
    """
    if options.namesrv is None:
        return table.stores_of(options)
    from mqfast.spark.remote.cluster import brokers_of

    names = brokers_of(options, begins=begins)
    if begins:
        table.check_brokers(options, names)
    return [(name, table.of_broker(options, name)) for name in names]


def forget_cluster(options: Options) -> None:
    """Discard the cached data of the options' cluster, so that the next request reads the present state."""
    if options.namesrv is not None:
        from mqfast.spark.remote.cluster import RemoteCluster

        RemoteCluster.shared(options).forget()


def known_topics(options: Options) -> list[str]:
    """Return all topics of the options' cluster, for the nearest name in errors; none for directories."""
    if options.namesrv is None:
        return []
    from mqfast.spark.remote.cluster import RemoteCluster

    return RemoteCluster.shared(options).topics()


def open_backend(options: Options) -> Backend:
    """Open the one store that the options name; a cluster needs exactly one name in ``brokers`` (see ``stores_of``).

    Raises: StoreNotFound, ConfigError.
    """
    if options.namesrv is None:
        return open_local(options)
    from mqfast.spark.remote.remote_backend import RemoteBackend

    if options.brokers is None or len(options.brokers) != 1:
        raise ConfigError(f"option brokers: expected the name of one broker, found {options.brokers}")
    return RemoteBackend(options, options.brokers[0])


def open_local(options: Options) -> LocalBackend:
    """Open the directory that the options name.

    Raises: StoreNotFound; ConfigError for options without a directory.
    """
    from mqfast.spark.local.local_backend import LocalBackend

    if options.path is None:
        raise ConfigError("option path: expected the root directory of a store, found none")
    return LocalBackend(options.path, options.store_path_commit_log or ())


def is_unavailable(options: Options, error: Exception) -> bool:
    """Return whether an error means that a broker is unavailable now; always False for directories."""
    if options.namesrv is None:
        return False
    from mqfast.client import cluster

    return cluster.is_unavailable(error)
