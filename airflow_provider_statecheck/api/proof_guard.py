"""
Guard of the proofs of tasks on Airflow's api-server.

A task proves itself by what it wrote into its state store. Airflow's public API also lets users write there who may
edit the task instance. They must not write a proof, with which they would act as the task.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY

_PUBLIC_API, _STORE = "/api/v2/", "/state-store/"
_PREFIX = CHALLENGE_KEY.partition(".")[0] + "."
_READING = ("GET", "HEAD", "OPTIONS", "DELETE")


class ProofGuard:
    """
    ASGI middleware that refuses to write a key of this package into the state store of a task with the public API.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and reply with status 403 if it would write such a key."""
        if scope["type"] == "http" and scope["method"] not in _READING and _is_reserved(scope["path"]):
            detail = (
                f"Expected a key without the prefix {_PREFIX!r}, found one that only the task itself may write; rename "
                "the key."
            )
            await JSONResponse({"detail": detail}, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_reserved(path: str) -> bool:
    # The database may compare keys regardless of their case.
    place, store, key = path.rpartition(_STORE)
    return bool(store) and _PUBLIC_API in place and key.casefold().startswith(_PREFIX)
