from __future__ import annotations

from tests.unit.worker import api_process, in_worker, served, with_database

__all__ = ["api_process", "in_worker", "served", "with_database"]
