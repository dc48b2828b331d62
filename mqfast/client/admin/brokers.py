"""Brokers and name servers: settings, measurements, replication state, and write permission.

A setting with an unknown name or a value of another type is refused before a request. Source:
DefaultMQAdminExtImpl, UpdateBrokerConfigSubCommand, WipeWritePermSubCommand.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from mqfast.client.admin.admin_base import AdminBase, read_field
from mqfast.client.admin.bodies import HaBody, TableBody, properties_text, settings_of
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_flag, checked_pairs, known_name
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.errors import ClientConfigError
from mqfast.remoting.codes import RequestCode

__all__ = ["BrokerCalls", "SlaveStatus", "HaStatus"]

_BOOLEANS: Final = ("true", "false")


class SlaveStatus(NamedTuple):
    """The replication state of a slave.

    Attributes: address: of the slave, as its master sees it, or the address of the request; state: from a master
        ``IN_SYNC`` or ``BEHIND``, from a slave ``TRANSFER``, ``READY``, ``DIVERGED`` or ``SHUTDOWN``; offset: physical
        end offset of the slave's log; behind_bytes: missing bytes; behind: age of the first missing message, None where
        the broker does not report it (RocketMQ's); bytes_per_s: sent in the last second; last_contact: time since the
        last message of the slave; error: the reason why replication stopped.
    """

    address: str
    state: str
    offset: int
    behind_bytes: int
    behind: timedelta | None
    bytes_per_s: int
    last_contact: timedelta | None
    error: str | None = None


class HaStatus(NamedTuple):
    """The replication state of a broker.

    Attributes: broker: its address; is_master; end: end offset of the master's log, as far as the broker knows; master:
        address of a slave's master; slaves: those of a master, or the slave itself.
    """

    broker: str
    is_master: bool
    end: int
    master: str | None
    slaves: Sequence[SlaveStatus]


class BrokerCalls(AdminBase):
    """The calls about brokers and name servers. A broker is named by its name (the master) or by ``host:port``."""

    @call
    def broker_config(self, broker: str) -> RequestSteps[Mapping[str, str]]:
        """Return all settings of a broker, by RocketMQ's names."""
        address = yield from self._address_of(broker)
        return (yield from _settings_at(self, address))

    @call
    def set_broker_config(
        self, broker: str, changes: Mapping[str, str], *, unchecked: bool = False
    ) -> RequestSteps[None]:
        """Change settings of a running broker; some act only at the next start.

        Args: unchecked: send also names that the broker does not list.
        Raises: ConfigError with the nearest name before anything is sent; Refused for what no admin may change.
        """
        pairs = checked_pairs("changes", changes)
        checked_flag("unchecked", unchecked)
        address = yield from self._address_of(broker)
        if not unchecked:
            _check_changes(pairs, (yield from _settings_at(self, address)))
        about = f"settings of broker {broker}"
        yield from self._call(address, RequestCode.UPDATE_BROKER_CONFIG, None, properties_text(pairs), about=about)

    @call
    def runtime(self, broker: str) -> RequestSteps[Mapping[str, str]]:
        """Return measurements of a broker: ``putTps``, ``commitLogDiskRatio``, ``msgPutTotalTodayNow`` and others."""
        address = yield from self._address_of(broker)
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        body = yield from self._query(address, code, TableBody, about=f"broker {broker}")
        return dict(sorted(body.table.items()))

    @call
    def ha_status(self, broker: str) -> RequestSteps[HaStatus]:
        """Return the replication state of a broker and of its slaves. Raises: Refused for brokers of 4.9."""
        address = yield from self._address_of(broker)
        code = RequestCode.GET_BROKER_HA_STATUS
        body = yield from self._query(address, code, HaBody, about=f"replication of broker {broker}")
        return _ha_status(address, body)

    @call
    def wipe_write_perm(self, broker: str) -> RequestSteps[int]:
        """Remove the write permission of a broker in the name servers, before the broker is stopped: producers go
        elsewhere.

        The change holds until the broker's topics change or ``add_write_perm``. Returns: the number of changed topics.
        """
        return (yield from _permission(self, broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount"))

    @call
    def add_write_perm(self, broker: str) -> RequestSteps[int]:
        """Restore the write permission of a broker. Returns: the number of changed topics."""
        return (yield from _permission(self, broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"))

    @call
    def namesrv_config(self) -> RequestSteps[Mapping[str, Mapping[str, str]]]:
        """Return the settings of each name server, by address."""
        answers = yield from self._each_name_server(RequestCode.GET_NAMESRV_CONFIG, about="settings of name servers")
        return {
            address: read_answer(answer, address, lambda data: settings_of("body", data))
            for address, answer in answers.items()
        }

    @call
    def set_namesrv_config(self, changes: Mapping[str, str], *, unchecked: bool = False) -> RequestSteps[None]:
        """Change settings of all name servers. Args, Raises: as ``set_broker_config``."""
        pairs = checked_pairs("changes", changes)
        checked_flag("unchecked", unchecked)
        about = "settings of name servers"
        if not unchecked:
            answers = yield from self._each_name_server(RequestCode.GET_NAMESRV_CONFIG, about=about)
            for address, answer in answers.items():
                _check_changes(pairs, read_answer(answer, address, lambda data: settings_of("body", data)))
        yield from self._each_name_server(RequestCode.UPDATE_NAMESRV_CONFIG, None, properties_text(pairs), about=about)


def _settings_at(admin: AdminBase, address: str) -> RequestSteps[dict[str, str]]:
    answer = yield from admin._call(address, RequestCode.GET_BROKER_CONFIG, about="settings of the broker")
    return read_answer(answer, address, lambda data: settings_of("body", data))


def _check_changes(pairs: Mapping[str, str], settings: Mapping[str, str]) -> None:
    for name, value in pairs.items():
        known_name("changes", name, settings)
        now = settings[name]
        if now in _BOOLEANS and value not in _BOOLEANS:
            raise ClientConfigError(f"changes: {name}: expected true or false, found {value!r}")
        if _is_number(now) and not _is_number(value):
            raise ClientConfigError(f"changes: {name}: expected a number as {now}, found {value!r}")


def _is_number(text: str) -> bool:
    whole, _, rest = text.removeprefix("-").partition(".")
    return whole.isascii() and whole.isdigit() and (not rest or (rest.isascii() and rest.isdigit()))


def _permission(admin: AdminBase, broker: str, code: RequestCode, field: str) -> RequestSteps[int]:
    known_name("broker", broker, (yield from admin._clusters()).brokers)
    answers = yield from admin._each_name_server(code, {"brokerName": broker}, about=f"broker {broker}")
    return max(read_field(answer, address, field) for address, answer in answers.items())


def _ha_status(address: str, body: HaBody) -> HaStatus:
    end = body.master_commit_log_max_offset
    if body.master:
        slaves = [
            SlaveStatus(
                connection.addr,
                "IN_SYNC" if connection.in_sync else "BEHIND",
                connection.slave_ack_offset,
                max(0, connection.diff),
                _ms(connection.behind_millis),
                connection.transferred_byte_in_second,
                _ms(connection.last_contact_millis),
            )
            for connection in body.ha_connection_info
        ]
        return HaStatus(address, True, end, None, slaves)
    own = body.ha_client_runtime_info
    if own is None:
        return HaStatus(address, False, end, None, [])
    heard_ms = own.last_contact_millis
    if heard_ms is None and own.last_read_timestamp > 0:
        heard_ms = max(0, time.time_ns() // 1_000_000 - own.last_read_timestamp)
    slave = SlaveStatus(
        address,
        own.state or ("TRANSFER" if own.is_activated else "READY"),
        own.max_offset,
        max(0, end - own.max_offset),
        _ms(own.behind_millis),
        own.transferred_byte_in_second,
        _ms(heard_ms),
        own.error,
    )
    return HaStatus(address, False, end, own.master_addr or None, [slave])


def _ms(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(milliseconds=number)
