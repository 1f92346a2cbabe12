"""Settings of the Arrow state backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.config_options import parse_size, parse_whole_number
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_COMPRESSIONS = ("lz4", "zstd", None)
PREFIX = "state.backend.arrow."
_SIZES = ("block_bytes", "part_bytes", "memtable_bytes", "cache_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStateSettings:
    """
    Sizes and compression of state files.

    :raises InvalidConfigurationError: for a size below 1, or an unknown compression.
    """

    block_rows: int = 4096
    """Maximum number of rows in a block. Reading one key fetches one block."""
    block_bytes: int = 1 << 20
    """Approximate maximum size of a block with large values."""
    part_bytes: int = 32 << 20
    """Approximate size of a file."""
    compression: str | None = "lz4"
    """Compression of the files: ``lz4``, ``zstd`` or ``none``."""
    memtable_bytes: int = 64 << 20
    """Estimated size of changes since the last snapshot that are buffered in memory. The rest is spilled to local files."""
    cache_bytes: int = 32 << 20
    """Size of the cache for reads of single keys."""

    def __post_init__(self) -> None:
        for name in ("block_rows", "block_bytes", "part_bytes", "memtable_bytes", "cache_bytes"):
            if getattr(self, name) < 1:
                raise InvalidConfigurationError(
                    f"Expected {name} to be at least 1, found {getattr(self, name)}; set a positive size."
                )
        if self.compression not in _COMPRESSIONS:
            raise InvalidConfigurationError(
                f"Expected the compression of state to be lz4, zstd or None, found {self.compression!r}; set one of them."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """
        Return the settings of a configuration, with keys such as ``state.backend.arrow.block-rows``.

        :raises InvalidConfigurationError: for an unknown or invalid setting.
        """
        names = {PREFIX + name.replace("_", "-"): name for name in ("block_rows", *_SIZES, "compression")}
        for key in config:
            if key.startswith(PREFIX) and key not in names:
                raise InvalidConfigurationError(
                    f"Expected one of {', '.join(names)}, found {key}; correct or remove it.", key=key
                )
        return cls(
            **{name: _parse(name, key, config[key]) for key, name in names.items() if config.get(key) is not None}
        )


def _parse(name: str, key: str, value: Any) -> Any:
    if name == "compression":
        return None if str(value).lower() == "none" else str(value).lower()
    return parse_size(key, value) if name in _SIZES else parse_whole_number(key, value)
