"""A process that keeps its session and works off requests, one JSON line each; for any Python, without packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(work: Callable[..., dict[str, Any]]) -> None:
    """
    Answer each request of standard input until it ends.

    :param work: Gets the values of a request by name, and returns JSON.
    """
    # What libraries print must not get among the answers.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(work(**json.loads(line))), file=replies, flush=True)
