"""The sizes of a store's files, from its files and notes, and the check of the settings against these sizes.

Nothing is guessed: a contradictory or unknown size is an error that says what to do. No file is opened or written.
Formats: FORMAT.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, CorruptFile
from mqfast.store.base.paths import StorePaths, list_offset_files, usual_queue_bytes
from mqfast.store.index.index_service import infer_index_sizes
from mqfast.store.meta.notes import StoreNotes, log_file_bytes

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi

__all__ = ["size_of_log_files", "sizes_of_files"]

_EMBEDDED: Final = StoreConfig()
_BROKER: Final = StoreConfig(profile="broker")


def size_of_log_files(os_api: OsApi, paths: StorePaths, config: StoreConfig) -> tuple[int, str]:
    """Return the size of the log files, and a file of that size; 0 without log files.

    Raises: CorruptFile for a file that was cut short or has grown, ConfigError if only an odd size is known.
    """
    files = [file for directory in paths.commit_logs for file in list_offset_files(os_api, directory)[0]]
    sizes = [os_api.file_size(file.path) for file in files]
    if not any(sizes):
        return 0, ""
    name = "mapped_file_bytes_commit_log"
    size = log_file_bytes(
        [(file.start_offset, size) for file, size in zip(files, sizes, strict=True)],
        StoreNotes.load(os_api, paths).log_file_bytes,
    )
    if name in config.explicit and (size == 0 or config.mapped_file_bytes_commit_log in sizes):
        size = config.mapped_file_bytes_commit_log
    if size == 0:
        raise ConfigError(
            f"{files[0].path}: expected a log file of whole KiB, found {sizes[0]} bytes; it may have been cut short:"
            f" name the size that it should have as {name}, and let 'mqfast store repair' bring it back to it"
        )
    for file, file_bytes in zip(files, sizes, strict=True):
        if file_bytes < size and (file_bytes > 0 or file is not files[-1]):
            raise CorruptFile(
                f"a log file was cut short; 'mqfast store repair' brings it back to its size, and cuts the log where it"
                f" ends (another size can be named as {name})",
                path=file.path,
                expected=f"{size} bytes",
                found=f"{file_bytes} bytes",
            )
        if file_bytes > size:
            raise CorruptFile(
                "a log file has grown; 'mqfast store repair' brings it back to its size, and keeps what is too much"
                f" (another size can be named as {name})",
                path=file.path,
                expected=f"{size} bytes",
                found=f"{file_bytes} bytes",
            )
    return size, files[sizes.index(size) if size in sizes else 0].path


def sizes_of_files(os_api: OsApi, paths: StorePaths, config: StoreConfig) -> StoreConfig:
    """Return the config with the file sizes of the existing files.

    Raises: ConfigError if an explicit setting contradicts a size.
    """
    sizes: dict[str, Any] = {}

    def note(name: str, size: int, path: str) -> None:
        if size <= 0 or name in sizes:
            return
        if name in config.explicit and getattr(config, name) != size:
            raise ConfigError(
                f"{name}: the store's files have {size} (see {path}), found {getattr(config, name)} in the settings"
            )
        sizes[name] = size

    size, path = size_of_log_files(os_api, paths, config)
    note("mapped_file_bytes_commit_log", size, path)
    kinds = (
        (paths.consume_queue, "mapped_file_bytes_consume_queue"),
        (paths.batch_consume_queue, "mapped_file_bytes_batch_consume_queue"),
        (paths.consume_queue_ext, "mapped_file_bytes_consume_queue_ext"),
    )
    for base, name in kinds:
        note(name, *usual_queue_bytes(os_api, base, getattr(config, name)))
    slots = config.max_hash_slot_num if "max_hash_slot_num" in config.explicit else None
    entries = config.max_index_num if "max_index_num" in config.explicit else None
    try:
        index = infer_index_sizes(os_api, paths.index, slots, entries)
    except CorruptFile:
        # Sizes are not stored in the file. Without any other source the configured sizes are tried, and a wrong length
        # is reported then.
        index = None
    if index is not None:
        note("max_hash_slot_num", index[0], paths.index)
        note("max_index_num", index[1], paths.index)
    elif sizes.get("mapped_file_bytes_commit_log") == _BROKER.mapped_file_bytes_commit_log:
        # A broker's log: its broker expects an index with the broker's own sizes beside it.
        for name in {"max_hash_slot_num", "max_index_num"} - config.explicit:
            if getattr(config, name) == getattr(_EMBEDDED, name):
                sizes[name] = getattr(_BROKER, name)
    other = {name: size for name, size in sizes.items() if getattr(config, name) != size}
    return replace(config, **other, explicit=config.explicit) if other else config
