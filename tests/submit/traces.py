"""Looks for a token wherever somebody else could read it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE


def token_of_driver(pid: int) -> str:
    """Return the token from the environment that a driver was started with, which its own user alone can read."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    handover = next(v for v in variables if v.startswith(f"{HANDOVER_VARIABLE}="))
    return str(json.loads(handover.partition("=")[2])["token"])


def is_shown_nowhere(token: str, pages: list[str], folders: list[Path]) -> None:
    """Assert that no command line, no page of Spark and no file has the token."""
    assert len(token) > 30
    assert [p for p in _readable(Path("/proc"), "[0-9]*/cmdline") if token.encode() in p[1]] == []
    for page in pages:
        answer = httpx.get(page, follow_redirects=True)
        assert answer.is_success, page
        assert token not in answer.text, page
    for folder in folders:
        assert [p for p in _readable(folder, "**/*") if token.encode() in p[1]] == []


def _readable(folder: Path, pattern: str) -> list[tuple[Path, bytes]]:
    found = []
    for path in folder.glob(pattern):
        try:
            found.append((path, path.read_bytes() if path.is_file() else b""))
        except OSError:
            continue  # it ended meanwhile
    return found
