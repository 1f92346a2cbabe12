"""
Ask a service how it is: ``healthy.py URL [KEY | KEY=VALUE]``.

The answer has to be JSON with something under the key, whose parts dots divide; the exit status says whether it has.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from http.client import HTTPException
from typing import Any

# A proxy that Docker names to every container is for the hosts outside.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main(url: str, wanted: str = "") -> int:
    """Return 0 where the service answers as it should."""
    try:
        with _DIRECT.open(url, timeout=8) as answer:
            found = json.load(answer)
    except (OSError, ValueError, HTTPException) as error:
        print(f"{url}: {error}")
        return 1
    key, _, value = wanted.partition("=")
    return 0 if not wanted or _holds(_under(found, key), value) else _complain(url, wanted, found)


def _under(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _holds(found: Any, value: str) -> bool:
    return str(found) == value if value else bool(found)


def _complain(url: str, wanted: str, found: Any) -> int:
    print(f"{url}: expected {wanted}, found {json.dumps(found)[:500]}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
