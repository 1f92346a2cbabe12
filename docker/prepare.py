"""
Preparation before Airflow starts: the tables, a bucket, the examples' data, and the unpaused maintenance Dag.

A second call does not overwrite later changes by the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DATA = Path("data")
DONE = DATA / ".prepared"


def main() -> None:
    """Run all steps."""
    run("airflow", "db", "migrate")
    make_bucket(os.environ["STORE_BUCKET"])
    if not DONE.exists():
        run(sys.executable, "scripts/example_data.py", str(DATA))
        run("airflow", "dags", "reserialize")
        run("airflow", "dags", "unpause", "--yes", "statecheck_maintenance")
        DONE.touch()


def run(*command: str) -> None:
    """Run a command and wait until it ends."""
    subprocess.run(command, check=True)


def make_bucket(name: str) -> None:
    """Create the bucket for checkpoints if it does not exist."""
    import s3fs

    store = s3fs.S3FileSystem()
    if not store.exists(name):
        store.mkdir(name)
        print(f"Created bucket {name}")


if __name__ == "__main__":
    main()
