"""Start of the api-server with the password from the secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path


def main() -> None:
    """Write Airflow's password file, which must be writable for Airflow, and execute the api-server."""
    passwords = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    passwords.parent.mkdir(parents=True, exist_ok=True)
    passwords.touch(mode=0o600)
    password = Path(os.environ["AIRFLOW_PASSWORD_FILE"]).read_text().strip()
    passwords.write_text(json.dumps({os.environ["AIRFLOW_USER"]: password}))
    os.execvp("airflow", ["airflow", "api-server"])


if __name__ == "__main__":
    main()
