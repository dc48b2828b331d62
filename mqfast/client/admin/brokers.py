"""Brokers and name servers: their settings, what they say of themselves, and whether brokers take messages.

Room: client. It must never send a setting whose name the server does not know, or a value of another kind than the one
it has. Source: DefaultMQAdminExtImpl, UpdateBrokerConfigSubCommand, WipeWritePermSubCommand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqfast.client.admin.asking import Asking, read_answer, read_field
from mqfast.client.admin.bodies import TableBody, properties_text, settings_of
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_flag, checked_pairs, known_name
from mqfast.client.net.steps import Steps
from mqfast.errors import ConfigError
from mqfast.remoting.codes import RequestCode

__all__ = ["BrokerCalls"]

_BOOLEANS: Final = ("true", "false")


class BrokerCalls(Asking):
    """The calls about brokers and name servers. A broker is named by its name (the master) or by ``host:port``."""

    @call
    def broker_config(self, broker: str) -> Steps[Mapping[str, str]]:
        """All settings of a broker, by RocketMQ's names."""
        address = (yield from self._clusters()).address_of(broker)
        return (yield from _settings_at(self, address))

    @call
    def set_broker_config(self, broker: str, changes: Mapping[str, str], *, unchecked: bool = False) -> Steps[None]:
        """Change settings of a running broker; some act only at its next start.

        Args: unchecked: send also names that the broker does not list.
        Raises: ConfigError with the nearest name before anything is sent; Refused for what no admin may change.
        """
        pairs = checked_pairs("changes", changes)
        checked_flag("unchecked", unchecked)
        address = (yield from self._clusters()).address_of(broker)
        if not unchecked:
            _check_changes(pairs, (yield from _settings_at(self, address)))
        about = f"settings of broker {broker}"
        yield from self._call(address, RequestCode.UPDATE_BROKER_CONFIG, None, properties_text(pairs), about=about)

    @call
    def runtime(self, broker: str) -> Steps[Mapping[str, str]]:
        """What a broker measures of itself: ``putTps``, ``commitLogDiskRatio``, ``msgPutTotalTodayNow`` and others."""
        address = (yield from self._clusters()).address_of(broker)
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        body = yield from self._ask(address, code, TableBody, about=f"broker {broker}")
        return dict(sorted(body.table.items()))

    @call
    def wipe_write_perm(self, broker: str) -> Steps[int]:
        """Have the name servers tell producers that they may not write to a broker: before it is stopped.

        It holds until the broker's topics change or ``add_write_perm``. Returns: topics that changed.
        """
        return (yield from _permission(self, broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount"))

    @call
    def add_write_perm(self, broker: str) -> Steps[int]:
        """Let producers write to a broker again. Returns: topics that changed."""
        return (yield from _permission(self, broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"))

    @call
    def namesrv_config(self) -> Steps[Mapping[str, Mapping[str, str]]]:
        """The settings of each name server, by its address."""
        answers = yield from self._each_name_server(RequestCode.GET_NAMESRV_CONFIG, about="settings of name servers")
        return {
            address: read_answer(answer, address, lambda data: settings_of("body", data))
            for address, answer in answers.items()
        }

    @call
    def set_namesrv_config(self, changes: Mapping[str, str], *, unchecked: bool = False) -> Steps[None]:
        """Change settings of all name servers. Args, Raises: as ``set_broker_config``."""
        pairs = checked_pairs("changes", changes)
        checked_flag("unchecked", unchecked)
        about = "settings of name servers"
        if not unchecked:
            answers = yield from self._each_name_server(RequestCode.GET_NAMESRV_CONFIG, about=about)
            for address, answer in answers.items():
                _check_changes(pairs, read_answer(answer, address, lambda data: settings_of("body", data)))
        yield from self._each_name_server(RequestCode.UPDATE_NAMESRV_CONFIG, None, properties_text(pairs), about=about)


def _settings_at(asking: Asking, address: str) -> Steps[dict[str, str]]:
    answer = yield from asking._call(address, RequestCode.GET_BROKER_CONFIG, about="settings of the broker")
    return read_answer(answer, address, lambda data: settings_of("body", data))


def _check_changes(pairs: Mapping[str, str], settings: Mapping[str, str]) -> None:
    for name, value in pairs.items():
        known_name("changes", name, settings)
        now = settings[name]
        if now in _BOOLEANS and value not in _BOOLEANS:
            raise ConfigError(f"changes: {name}: expected true or false, found {value!r}")
        if _is_number(now) and not _is_number(value):
            raise ConfigError(f"changes: {name}: expected a number as {now}, found {value!r}")


def _is_number(text: str) -> bool:
    whole, _, rest = text.removeprefix("-").partition(".")
    return whole.isascii() and whole.isdigit() and (not rest or (rest.isascii() and rest.isdigit()))


def _permission(asking: Asking, broker: str, code: RequestCode, field: str) -> Steps[int]:
    known_name("broker", broker, (yield from asking._clusters()).brokers)
    answers = yield from asking._each_name_server(code, {"brokerName": broker}, about=f"broker {broker}")
    return max(read_field(answer, address, field) for address, answer in answers.items())
