"""The names of a sink's own files in a Delta table, and whose they are."""

from __future__ import annotations

import re

_OURS = re.compile(r"statecheck-([0-9a-f]{12})/(?:.*/)?g(\d+)-e(\d+)-\d+-[0-9a-f]{32}\.parquet", re.DOTALL)


def data_directory(lineage: str) -> str:
    """Return where the data files of a lineage lie; readers of Delta tables look into it, hidden ones they pass over."""
    return f"statecheck-{lineage}"


def data_file(lineage: str, directory: str, generation: int, epoch: int, subtask: int, key: str) -> str:
    """
    Return the name of a data file, which it keeps.

    :param directory: The partition of its rows.
    :param key: 32 hex characters that nobody else uses.
    """
    name = f"g{generation}-e{epoch}-{subtask}-{key}.parquet"
    return "/".join(part for part in (data_directory(lineage), directory, name) if part)


def lineage_of_data_file(name: str) -> str | None:
    """Return whose data file a name is, ``None`` if no sink of ours wrote it."""
    match = _OURS.fullmatch(name)
    return match.group(1) if match else None


def generation_of_data_file(name: str) -> int:
    """Return the generation of an own data file."""
    return _number(name, 2)


def epoch_of_data_file(name: str) -> int:
    """Return which attempt wrote an own data file."""
    return _number(name, 3)


def head_of(lineage: str) -> str:
    """Return the application whose version is the epoch of the newest attempt."""
    return f"statecheck-{lineage}"


def generation_key(lineage: str, generation: int) -> str:
    """Return the application whose version is the newest checkpoint that a generation has committed."""
    return f"statecheck-{lineage}-g{generation}"


def end_of(lineage: str) -> str:
    """Return the application whose version is the attempt that succeeded last without a checkpoint of its own."""
    return f"statecheck-{lineage}-end"


def _number(name: str, group: int) -> int:
    match = _OURS.fullmatch(name)
    return int(match.group(group)) if match else 0
