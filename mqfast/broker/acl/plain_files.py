"""The files of ACL 1.0: ``plain_acl.yml`` and those in ``acl/`` beside it; polled for changes, changed by admins.

No reader sees a half-written file, and secrets are not readable for others. A change by an admin is on disk before the
response. Source: PlainPermissionManager, AclFileWatchService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mqfast.broker.acl.plain import Find, PlainAccounts, account_of
from mqfast.broker.acl.required_permissions import Need
from mqfast.broker.acl.rights import Caller
from mqfast.errors import ConfigError
from mqfast.remoting.command import RemotingCommand
from mqfast.util.atomic_file import replace_file

__all__ = ["PlainFiles"]

_log = logging.getLogger("mqfast.broker.acl")
_FIELDS: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
)  # fmt: skip
_SHOWN: Final = tuple(name for name in _FIELDS if name != "secretKey")
_TEXTS: Final = ("accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
Content = dict[str, Any]


class PlainFiles:
    """The accounts in force, and their files.

    Args: file: ``plain_acl.yml``; may be missing while ``directory`` has others. now_ms: for versions.
    Raises: ConfigError, OSError for missing or invalid files.
    """

    def __init__(self, file: Path, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.file = file
        self._directory = file.parent / "acl"
        self._now_ms = now_ms
        self._seen = self._times()
        self._content = self._read()
        self._accounts = PlainAccounts(self._content)
        if not self._content:
            raise ConfigError(f"aclEnable: expected accounts in {file} or {self._directory}/*.yml, found no such file")

    def check(self, request: RemotingCommand, address: str, find: Find, needs: Sequence[Need] | None = None) -> None:
        """Check as ``PlainAccounts.check``. Raises: CallRefused."""
        self._accounts.check(request, address, find, needs)

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret of an account; None for an unknown account."""
        return self._accounts.secret_of(access_key)

    def compare(self, caller: Caller, needs: Iterable[Need], code: int) -> None:
        """Check further permissions of the caller of an admitted request. Raises: CallRefused."""
        self._accounts.compare(caller, needs, code)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        paths = sorted(p for p in self._directory.rglob("*") if p.suffix in (".yml", ".yaml") and p.is_file())
        return [*paths, self.file] if self.file.exists() and self.file not in paths else paths

    def _times(self) -> dict[Path, tuple[int, int, int]]:
        times = {}
        for path in self._paths():
            status = path.stat()
            times[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return times

    def _read(self) -> dict[Path, Content]:
        return {path: _yaml_of(path) for path in self._paths()}

    def reload_if_changed(self) -> bool:
        """Read the files again after a change. A broken file leaves the accounts unchanged."""
        try:
            times = self._times()
            if times == self._seen:
                return False
            self._seen = times
            content = self._read()
            self._accounts = PlainAccounts(content)
        except (ConfigError, OSError) as error:
            _log.error("ACL: the accounts of before stay in force: %s", error)
            return False
        self._content = content
        _log.info("ACL: read again: %s", ", ".join(map(str, content)) or "no file; every request is refused")
        return True

    # -- changes by admins ---------------------------------------------------------------------------------------------

    def put_account(self, given: Mapping[str, Any]) -> None:
        """Create or change an account (50). Raises: ConfigError."""
        account_of(given)
        for what in ("topicPerms", "groupPerms"):
            for line in given.get(what) or ():
                _check_perm(str(line))
        path = self._accounts.file_of.get(str(given["accessKey"]), self.file)
        content = dict(self._content.get(path, {}))
        accounts = [dict(entry) for entry in content.get("accounts") or ()]
        account = next((entry for entry in accounts if entry.get("accessKey") == given["accessKey"]), None)
        if account is None:
            accounts.append(account := {})
        account.update({name: given[name] for name in _FIELDS if given.get(name) is not None})
        self._write(path, {**content, "accounts": accounts})

    def delete_account(self, access_key: str) -> bool:
        """Remove an account (51). Returns: False for an unknown account."""
        path = self._accounts.file_of.get(access_key)
        if path is None:
            return False
        content = self._content[path]
        remaining = [entry for entry in content.get("accounts") or () if entry.get("accessKey") != access_key]
        self._write(path, {**content, "accounts": remaining})
        return True

    def set_white_list(self, addresses: list[str], file: str | None) -> bool:
        """Set the addresses with all permissions (53). Returns: False for a file that is none of ACL. Raises:
        ConfigError.
        """
        path = Path(file) if file else self.file
        if path not in self._content:
            return False
        self._write(path, {**self._content[path], "globalWhiteRemoteAddresses": addresses})
        return True

    def _write(self, path: Path, content: Content) -> None:
        version = self.version_of(content)
        content["dataVersion"] = [{"counter": version["counter"] + 1, "timestamp": self._now_ms()}]
        changed = {**self._content, path: content}
        accounts = PlainAccounts(changed)  # invalid content is refused before the write
        import yaml

        replace_file(path, yaml.safe_dump(content, allow_unicode=True, sort_keys=False).encode())
        self._content, self._accounts, self._seen = changed, accounts, self._times()

    # -- queries of admins ---------------------------------------------------------------------------------------------

    @staticmethod
    def version_of(content: Mapping[str, Any]) -> dict[str, int]:
        """Return the data version of a file."""
        version = (content.get("dataVersion") or [{}])[0]
        return {name: int(version.get(name) or 0) for name in ("counter", "stateVersion", "timestamp")}

    def versions(self) -> dict[str, dict[str, int]]:
        """Return path -> data version of every file (52)."""
        return {str(path): self.version_of(content) for path, content in self._content.items()}

    def everything(self) -> tuple[list[str], list[Content]]:
        """Return the addresses with all permissions, and all accounts without their secrets (54)."""
        white = [
            str(address)
            for content in self._content.values()
            for address in content.get("globalWhiteRemoteAddresses") or ()
        ]
        accounts: dict[str, Content] = {}
        for content in self._content.values():
            for entry in content.get("accounts") or ():
                shown = {name: entry[name] for name in _SHOWN if entry.get(name) is not None}
                accounts.setdefault(str(entry["accessKey"]), {"admin": False, **shown})
        return white, list(accounts.values())


def _check_perm(line: str) -> None:
    words = [word.strip() for word in line.split("=") if word]
    if len(words) != 2:
        raise ConfigError(
            f"Parse Resource format error for {line}.\n"
            "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
        )
    if words[1] not in ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY"):
        raise ConfigError(
            f"Parse resource permission error for {line}.\n"
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
        )


def _yaml_of(path: Path) -> Content:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError("aclEnable needs PyYAML: pip install 'mqfast[broker]'") from None
    try:
        content = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: expected YAML, found {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    lists = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
    if not isinstance(content, dict) or any(not isinstance(content.get(name) or [], list) for name in lists):
        raise ConfigError(f"{path}: expected a mapping with lists {', '.join(lists)}, found {type(content).__name__}")
    if any(not isinstance(entry, dict) for entry in content.get("accounts") or ()):
        raise ConfigError(f"{path}: accounts: expected a mapping for each, found another kind")
    for entry in content.get("accounts") or ():
        # Java reads a number as text.
        entry.update({name: str(entry[name]) for name in _TEXTS if entry.get(name) is not None})
    return content
