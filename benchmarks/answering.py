"""Request loop of a benchmark process: one JSON line per request, without third-party packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(work: Callable[..., dict[str, Any]]) -> None:
    """
    Answer the requests from standard input until it ends.

    :param work: Function that takes the values of a request as keyword arguments and returns a JSON object.
    """
    # Libraries may print to standard output, which must contain only replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(work(**json.loads(line))), file=replies, flush=True)
