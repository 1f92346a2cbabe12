"""Command that serves queryable state from a process without Airflow's database."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace

from airflow_provider_statecheck.cli.output import Exit, command, print_rows


@command
def serve_state(args: Namespace) -> Exit:
    """Serve queryable state until the process is stopped; print the URL as soon as it accepts requests."""
    from airflow_provider_statecheck.api.state_server import (
        API_TIMEOUT_SECONDS,
        StateServerSettings,
        create_state_app,
        run_server,
    )
    from airflow_provider_statecheck.configuration import StateServingSettings
    from airflow_provider_statecheck.hooks.connection import CoordinatorAddress, coordinator_address
    from airflow_provider_statecheck.hooks.storage import storage_opener

    address = CoordinatorAddress(url=args.api_url) if args.api_url else coordinator_address()
    address = replace(address, url=address.url.rstrip("/"), timeout_seconds=API_TIMEOUT_SECONDS)
    settings = StateServerSettings(
        api_url=address.url,
        max_staleness_seconds=args.max_staleness,
        requests_per_second=StateServingSettings.read().state_requests_per_second,
    )
    app = create_state_app(settings, address.open_async, storage_opener(args.storage_conn_id))
    run_server(app, args.host, args.port, lambda url: _announce(url, address.url, args.output))
    return Exit.DONE


def _announce(url: str, api_url: str, output: str) -> None:
    print_rows([{"url": url, "api": api_url}], output)
    sys.stdout.flush()  # a pipe would keep the row until the end of the process
