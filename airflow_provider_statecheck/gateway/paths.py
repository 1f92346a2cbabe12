"""Where the API lies on Airflow's api-server."""

from __future__ import annotations

MOUNT_PATH = "/statecheck"
VERSION_PATH = "/v1"
JOB_PAGES = "/jobs"
