"""Changes of a server's settings over the network: ``updateBrokerConfig`` (25) and ``updateNamesrvConfig`` (318).

The network may change only the settings that act at once. A change is written to the property file before it acts, and
a change that is answered with an error acts nowhere. The event loop is not blocked. Source: Configuration.update,
AdminBrokerProcessor, DefaultRequestProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mqfast.errors import CallRefused, ConfigError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.settings.property_settings import PropertySettings
from mqfast.util.atomic_file import replace_file
from mqfast.util.log_limit import LogLimit
from mqfast.util.property_file import parse_properties, with_settings

__all__ = ["Changed", "SettingsChange"]

_BLACK: Final = "Can not update config in black list."  # RocketMQ's text


class Changed(NamedTuple):
    """The result of a request: name -> text of the changed settings; and the names that change nothing here."""

    taken: Mapping[str, str]
    ignored: list[str]

    @property
    def remark(self) -> str | None:
        """Return the text of the response."""
        return f"without effect here: {', '.join(self.ignored)}" if self.ignored else None


class SettingsChange:
    """Applies changes in turn.

    Args: code: of the request, for messages; black: names that RocketMQ refuses whatever ``configBlackList`` says;
        file: the property file that keeps changes, None where there is none.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        config: PropertySettings,
        code: int,
        *,
        black: tuple[str, ...],
        file: Callable[[], str | Path | None],
        log: logging.Logger,
    ) -> None:
        self._config: Final = config
        self._where: Final = f"request {int(code)}"
        self._black: Final = black
        self._file: Final = file
        self._log: Final = LogLimit(log, burst=20)
        self._lock: Final = asyncio.Lock()

    async def apply(self, channel: Channel, request: RemotingCommand) -> Changed:
        """Apply the settings of a request's body: all of them or none.

        Raises: CallRefused for a setting that the network may not change, a wrong value, or a file that cannot be
            written; nothing was changed then.
        """
        # The change continues when the client disconnects: file and process agree then.
        return await asyncio.shield(asyncio.ensure_future(self._apply(channel, bytes(request.body))))

    async def _apply(self, channel: Channel, body: bytes) -> Changed:
        async with self._lock:
            try:
                pairs = parse_properties(body.decode("utf-8", "replace"))
                self._check(pairs)
                taken = {name: text for name, text in pairs.items() if self._config.is_live(name)}
                self._config.check_values(taken, self._where)
            except ConfigError as error:
                raise CallRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
            file = self._file()
            if file is not None and taken:
                await asyncio.get_running_loop().run_in_executor(None, _rewrite, Path(file), taken)
            if taken:
                self._config.update(taken, self._where)
            ignored = sorted(pairs.keys() - taken.keys())
            self._log.warning(
                "changed",
                "settings changed by %s:%d: %s; without effect: %s",
                *channel.peer,
                taken,
                ", ".join(ignored) or "none",
            )
            return Changed(taken, ignored)

    def _check(self, pairs: Mapping[str, str]) -> None:
        if not {*self._black, *str(self._config["configBlackList"]).split(";")}.isdisjoint(pairs):
            raise CallRefused(ResponseCode.NO_PERMISSION, _BLACK)
        for name, text in pairs.items():
            if any(end in name or end in text for end in "\r\n\0"):
                raise ConfigError(f"{self._where}: {name!r}: expected a name and a value of one line, found {text!r}")
        refused = sorted(name for name in pairs if self._config.acts(name) and not self._config.is_live(name))
        if refused:
            raise CallRefused(
                ResponseCode.NO_PERMISSION,
                f"expected settings that the network may change, found {', '.join(refused)}: write them into the "
                "server's file or command line, and start it again; nothing was changed",
            )


def _rewrite(path: Path, pairs: Mapping[str, str]) -> None:
    try:
        text = path.read_bytes().decode("latin-1") if path.exists() else ""
        replace_file(path, with_settings(text, pairs).encode("latin-1"), mode=0o644)
    except ConfigError as error:
        raise CallRefused(ResponseCode.SYSTEM_ERROR, f"{path}: {error}; nothing was changed") from None
    except OSError as error:
        raise CallRefused(
            ResponseCode.SYSTEM_ERROR, f"{path}: the change cannot be written ({error}); nothing was changed"
        ) from None
