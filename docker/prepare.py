"""
Make what has to be there before Airflow starts: its tables, a bucket, the examples' data, and a maintenance Dag that is on.

Doing it again changes nothing that somebody has changed since.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DATA = Path("data")
DONE = DATA / ".prepared"


def main() -> None:
    """Prepare everything."""
    run("airflow", "db", "migrate")
    make_bucket(os.environ["STORE_BUCKET"])
    if not DONE.exists():
        run(sys.executable, "scripts/example_data.py", str(DATA))
        run("airflow", "dags", "reserialize")
        run("airflow", "dags", "unpause", "--yes", "statecheck_maintenance")
        DONE.touch()


def run(*command: str) -> None:
    """Run a command to its end."""
    subprocess.run(command, check=True)


def make_bucket(name: str) -> None:
    """Make the bucket for checkpoints, unless it is there."""
    import s3fs

    store = s3fs.S3FileSystem()
    if not store.exists(name):
        store.mkdir(name)
        print(f"Made the bucket {name}")


if __name__ == "__main__":
    main()
