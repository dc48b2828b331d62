"""Writes the tables of ``settings.md``, the settings that the network may change in ``broker.md``, and the types of
``mqfast/settings/store_settings.py`` from the declarations: ``python docs/settings_table.py``.

It must never hold a fact about a setting of its own: names, units, defaults and texts come from
``StoreConfig.describe()``, and whether a setting has an effect from the sources that read it. A test compares the
document with what this writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mqfast.broker.config.broker_config import BrokerConfig  # noqa: E402  (the sources beside this file, not an installed package)
from mqfast.broker.config.broker_settings import setting_groups  # noqa: E402  (the sources beside this file, not an installed package)
from mqfast.config import FIELD_OF_PROPERTY, StoreConfig  # noqa: E402  (the sources beside this file, not an installed package)
from mqfast.namesrv.namesrv_config import acting_settings  # noqa: E402  (the sources beside this file, not an installed package)
from mqfast.settings.declaration import SettingSpec, specs_of  # noqa: E402  (the sources beside this file, not an installed package)

DOCUMENT = ROOT / "docs" / "settings.md"
TYPES = ROOT / "mqfast" / "settings" / "store_settings.py"
BROKER_PAGE = ROOT / "docs" / "broker.md"
BEGIN_LIVE, END_LIVE = "<!-- live settings -->", "<!-- end of live settings -->"
BEGIN_TYPES = "    # Written by docs/settings_table.py."
HOST_PARTS = {"brokerIP1": "str", "listenPort": "int"}
BEGIN = "<!-- settings: written by docs/settings_table.py -->"
END = "<!-- end of settings -->"
BEGIN_SERVERS = "<!-- settings of servers: written by docs/settings_table.py -->"
END_SERVERS = "<!-- end of settings of servers -->"
# Settings that the engine asks for by what follows from them.
ASKED_AS = {
    "profile": "retention_rules",
    "flush_disk_type": "sync_flush",
    "message_delay_level": "delay_levels_ms",
    "delete_when": "delete_hours",
    "store_path_commit_log": "commit_log_dirs",
    "read_only_commit_log_store_paths": "read_only_commit_log_dirs",
    "retention_bytes": "retention_rules",
}


def sources() -> str:
    """The engine's sources, but for the configuration itself and the command line."""
    files = [p for kind in ("*.py", "*.pyx") for p in sorted((ROOT / "mqfast").rglob(kind))]
    left_out = ROOT / "mqfast" / "cli"
    files = [p for p in files if p.name != "config.py" and left_out not in p.parents]
    return "\n".join(p.read_text(encoding="utf-8") for p in files)


def table() -> str:
    """The table, Markdown."""
    text = sources()
    lines = ["| Setting | RocketMQ's name | Default | Unit | What it does |", "|---|---|---|---|---|"]
    for setting, broker in zip(StoreConfig().describe(), StoreConfig(profile="broker").describe(), strict=True):
        asked = ASKED_AS.get(setting.field, setting.field)
        mark = "" if re.search(rf"\.{asked}\b", text) else " †"
        name = f"`{setting.rocketmq_name}`" if setting.rocketmq_name else "(own)"
        value = "`none`" if setting.value is None else f"`{setting.value}`"
        if broker.value != setting.value and setting.field != "profile":
            value += f"; broker `{broker.value}`"
        cells = (f"`{setting.field}`{mark}", name, value, setting.unit or "on/off", setting.doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def server_tables() -> str:
    """Return the tables of the broker's and the name server's settings, Markdown."""
    groups = {f"Broker: {title}": specs for title, specs in setting_groups().items()}
    groups["Name server"] = acting_settings()
    return "\n\n".join(f"### {title}\n\n{_server_table(specs)}" for title, specs in groups.items())


def _server_table(specs: Mapping[str, SettingSpec]) -> str:
    lines = ["| Setting | Default | Unit | What it does |", "|---|---|---|---|"]
    for name, spec in specs.items():
        default = str(spec.default).lower() if isinstance(spec.default, bool) else str(spec.default)
        default = default.replace(str(Path.home()), "~")
        shown = "name of the machine" if name == "brokerName" else f"`{default}`" if default else ""
        unit = "on/off" if spec.kind == "bool" else spec.unit or ("number" if spec.kind == "int" else "text")
        lines.append(f"| `{name}`{' ‡' if spec.is_live else ''} | {shown} | {unit} | {spec.doc} |")
    return "\n".join(lines)


def renewed(document: str) -> str:
    """The document with its tables written again."""
    for begin, end, text in ((BEGIN, END, table()), (BEGIN_SERVERS, END_SERVERS, server_tables())):
        head, _, rest = document.partition(begin)
        _, _, tail = rest.partition(end)
        document = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return document


def renewed_live(document: str) -> str:
    """``broker.md`` with its list of settings that the network may change written anew."""
    config = BrokerConfig()
    lines = ["| Of | Settings |", "|---|---|"]
    for owner, names in (("the broker", config.names()), ("the store: what is deleted", FIELD_OF_PROPERTY)):
        live = sorted((name for name in names if config.is_live(name)), key=str.lower)
        lines.append(f"| {owner} | {', '.join(f'`{name}`' for name in live)} |")
    listed = "\n".join(lines)
    head, _, rest = document.partition(BEGIN_LIVE)
    _, _, tail = rest.partition(END_LIVE)
    return f"{head}{BEGIN_LIVE}\n\n{listed}\n\n{END_LIVE}{tail}"


def _type_of(name: str) -> str:
    spec = specs_of(StoreConfig)[name]
    kind = f"Literal[{', '.join(map(repr, spec.choices))}]".replace("'", '"') if spec.choices else spec.kind
    return f"{kind} | None" if spec.optional else kind


def renewed_types(source: str) -> str:
    """``mqfast/settings/store_settings.py`` with its fields written anew: our names, then RocketMQ's."""
    head, _, _ = source.partition(BEGIN_TYPES)
    ours = {s.field: _type_of(s.field) for s in StoreConfig().describe()}
    lines = [f"    {name}: {kind}" for name, kind in ours.items()]
    lines += [f"    {prop}: {ours[name]}" for prop, name in FIELD_OF_PROPERTY.items()]
    lines += [f"    {prop}: {kind}" for prop, kind in HOST_PARTS.items()]
    return f"{head}{BEGIN_TYPES}\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    TYPES.write_text(renewed_types(TYPES.read_text(encoding="utf-8")), encoding="utf-8")
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    BROKER_PAGE.write_text(renewed_live(BROKER_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
