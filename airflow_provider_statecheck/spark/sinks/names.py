"""The names below the target of a Parquet sink, and whose they are."""

from __future__ import annotations

import hashlib
import re

LEDGER_DIRECTORY = "_statecheck"
"""Readers of Parquet directories pass over names with such a beginning."""
_LINEAGE_LENGTH = 12
_SHORT_LENGTH = 12
# Not .parquet: a glob such as **/*.parquet looks into hidden directories too.
_STAGED_SUFFIX = ".staged"
_STAGED = re.compile(r"(\d+)-[0-9a-f]{32}\.staged")
_FINAL = re.compile(r"part-([0-9a-f]{12})-g\d+-c\d+-\d+-[0-9a-f]{12}\.parquet")


def lineage_of(job_id: str, uid: str) -> str:
    """Return what names the files of one sink of one job, and of no other, in all attempts."""
    return hashlib.sha256(f"{job_id}/{uid}".encode()).hexdigest()[:_LINEAGE_LENGTH]


def lineage_directory(lineage: str) -> str:
    """Return where everything of a lineage lies but its published files."""
    return f"{LEDGER_DIRECTORY}/{lineage}"


def staging_directory(lineage: str) -> str:
    """Return where files wait for their commit."""
    return f"{lineage_directory(lineage)}/staging"


def staged_name(epoch: int, key: str) -> str:
    """
    Return the name of a file within the staging directory.

    :param key: 32 hex characters that nobody else uses.
    """
    return f"{epoch}-{key}{_STAGED_SUFFIX}"


def staged_epoch(name: str) -> int | None:
    """Return which attempt wrote a file of the staging directory, ``None`` for a name of another form."""
    match = _STAGED.fullmatch(name)
    return int(match.group(1)) if match else None


def final_name(lineage: str, generation: int, checkpoint_id: int, subtask: int, staged: str) -> str:
    """Return the name under which a staged file is published."""
    short = staged.removesuffix(_STAGED_SUFFIX).rpartition("-")[2][:_SHORT_LENGTH]
    return f"part-{lineage}-g{generation}-c{checkpoint_id}-{subtask}-{short}.parquet"


def lineage_of_file(path: str) -> str | None:
    """Return whose published file a path is, ``None`` if no sink of ours wrote it."""
    match = _FINAL.fullmatch(path.rpartition("/")[2])
    return match.group(1) if match else None


def is_hidden(path: str) -> bool:
    """Tell whether readers of a Parquet directory pass over a file."""
    # Spark reads a directory _a=1 as the partition it is.
    return any(part[:1] in "._" and "=" not in part for part in path.split("/"))
