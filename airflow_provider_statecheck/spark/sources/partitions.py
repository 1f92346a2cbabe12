"""Columns whose values stand in the names of directories, as in ``day=2026-11-21/``."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import redact

NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_of(root: str, uri: str) -> dict[str, str | None]:
    """Return the columns that the directories between a root and a file name; ``None`` for a missing value."""
    directories = uri.removeprefix(root).split("/")[:-1]
    pairs = (part.partition("=") for part in directories if "=" in part)
    return {unquote(name): None if value == NULL else unquote(value) for name, _, value in pairs}


def require_same_columns(files: Iterable[tuple[str, str]]) -> None:
    """
    Refuse files of which only some are in directories of partitions, or in other ones.

    :param files: Root and URI of each.
    :raises InvalidConfigurationError: if their columns differ.
    """
    known: dict[tuple[str, ...], str] = {}
    for root, uri in files:
        known.setdefault(tuple(partition_of(root, uri)), uri)
    if len(known) > 1:
        (some, uri), (others, other) = list(known.items())[:2]
        raise InvalidConfigurationError(
            f"Expected the same columns in the names of all directories, found {list(some)} in {redact(uri)} and "
            f"{list(others)} in {redact(other)}; read them by sources of their own."
        )
