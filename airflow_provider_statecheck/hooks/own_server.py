"""
The coordinator's API served by the task itself.

Where a task may use Airflow's database, in ``airflow tasks test`` and ``dag.test``, there need not be an api-server that
a driver could ask.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.metadata.token_store import Caller

_BACKLOG = 64


class OwnTokens:
    """
    Credentials for whoever has the database open and needs no proof.

    :param services: What gives the tokens.
    :param caller: The task that they are given to.
    """

    def __init__(self, services: Services, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    def obtain(self) -> str:
        """Return a token of the task."""
        from airflow.sdk.log import mask_secret

        token = self._services.tokens.issue(self._caller).token
        mask_secret(token)
        return token


@contextmanager
def serving(services: Services) -> Iterator[str]:
    """
    Serve the API to this machine alone, on a free port, from a thread.

    :param services: What the routes work with.
    :return: Root of the server.
    """
    import uvicorn

    from airflow_provider_statecheck.api.app import create_server_app

    app = create_server_app(services)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="warning"))
    # Bound before the thread starts: a connection that comes early waits.
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="statecheck-api")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
