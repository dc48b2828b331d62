"""The options of a user as the settings of a client that sends.

Opens no connection. Uses no Spark.
"""

from __future__ import annotations

from mqfast.client.net.instance import InstanceSettings
from mqfast.client.route.namespace import namespace_of_address
from mqfast.client.settings import instance_settings
from mqfast.client.values import Credentials
from mqfast.spark.options import Options
from mqfast.spark.remote.cluster import tls_context

__all__ = ["settings_of"]


def settings_of(options: Options) -> InstanceSettings:
    """Return the settings of a client of the options' cluster. Raises: ConfigError."""
    credentials = None
    if options.access_key is not None and options.secret_key is not None:
        credentials = Credentials(options.access_key, options.secret_key, options.security_token)
    settings = instance_settings(
        options.namesrv,
        credentials=credentials,
        tls=tls_context(options) or False,
        namespace=options.namespace,
        namespace_v2=options.namespace_v2,
    )
    return settings._replace(namespace=settings.namespace or namespace_of_address(settings.name_servers[0]))
