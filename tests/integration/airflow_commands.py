"""
Airflow's own commands, each in a process forked from one that has Airflow loaded already.

``python -m tests.integration.airflow_commands`` reads a JSON list of arguments per line and answers each with the
command's exit status; what the command printed is in the file that its first argument names.

``start-api-servers 3`` is no command of Airflow: three processes start the api-server's app at once, and print the
status of our health check.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn


def _run(arguments: list[str]) -> int:
    if arguments[0] == "start-api-servers":
        return _start_api_servers(int(arguments[1]))
    from airflow.__main__ import main

    sys.argv = ["airflow", *arguments]
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _start_api_servers(count: int) -> int:
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            _start_api_server()
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def _start_api_server() -> NoReturn:
    status = 1
    try:
        from airflow.api_fastapi.app import create_app
        from fastapi.testclient import TestClient

        with TestClient(create_app()) as server:
            sys.stdout.write(f"health {server.get('/statecheck/v1/health').status_code}\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _child(output: Path, arguments: list[str]) -> None:
    status = 1
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = _run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _load() -> None:
    from airflow.models import import_all_models

    for module in ("airflow.cli.cli_parser", "airflow.utils.db"):
        importlib.import_module(module)
    import_all_models()


def main() -> None:
    _load()
    sys.stdout.flush()
    for line in sys.stdin:
        output, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(Path(output), arguments)
        _, status = os.waitpid(child, 0)
        os.write(1, f"status {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
