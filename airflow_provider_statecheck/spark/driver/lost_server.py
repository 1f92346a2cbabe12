"""Tells the end of a Spark Connect server from the errors that its clients get."""

from __future__ import annotations

import re

_CONNECT_ERRORS = "pyspark.errors.exceptions.connect"
# A server that is gone, or one in its place that does not know the session.
_LOST = re.compile(r"UNAVAILABLE|INVALID_HANDLE|SESSION_NOT_FOUND|SESSION_CHANGED|NO_ACTIVE_SESSION|Connection refused")


def is_server_lost(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, says that the server is gone or was started anew."""
    seen: BaseException | None = error
    while seen is not None:
        if _is_of_client(seen) and _LOST.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _is_of_client(error: BaseException) -> bool:
    # A PythonException tells of the user's function, whose own connections are none of ours.
    return type(error).__module__ == _CONNECT_ERRORS and type(error).__name__ != "PythonException"
