"""
Health check of a service: ``healthy.py URL [KEY | KEY=VALUE]``.

The reply must be JSON. The exit status is 0 if the value at the dotted key is non-empty, or equal to ``VALUE``.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from http.client import HTTPException
from typing import Any

# Docker may configure a proxy in every container, which must not be used between containers.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main(url: str, wanted: str = "") -> int:
    """Return 0 if the service is healthy."""
    try:
        with _DIRECT.open(url, timeout=8) as reply:
            found = json.load(reply)
    except (OSError, ValueError, HTTPException) as error:
        print(f"{url}: {error}")
        return 1
    key, _, value = wanted.partition("=")
    return 0 if not wanted or _matches(_value_at(found, key), value) else _report(url, wanted, found)


def _value_at(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _matches(found: Any, value: str) -> bool:
    return str(found) == value if value else bool(found)


def _report(url: str, wanted: str, found: Any) -> int:
    print(f"{url}: expected {wanted}, found {json.dumps(found)[:500]}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
