"""
Add indexes for queries on a job whose cost does not depend on the length of its history.

Revision ID: 0006_0_1_0
Revises: 0005_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_0_1_0"
down_revision = "0005_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"

_COMPLETED = "idx_statecheck_checkpoint_completed"
_UNDISCARDED = "idx_statecheck_checkpoint_undiscarded"
_REQUESTED = "idx_statecheck_request_job_id_requested_at"


def upgrade() -> None:
    """Add the indexes."""
    op.create_index(_COMPLETED, "statecheck_checkpoint", ["job_id", "operator_id", "generation", "completed_at"])
    op.create_index(
        _UNDISCARDED,
        "statecheck_checkpoint",
        ["job_id", "operator_id"],
        postgresql_where=sa.text("discarded_at IS NULL"),
        sqlite_where=sa.text("discarded_at IS NULL"),
    )
    op.create_index(op.f(_REQUESTED), "statecheck_request", ["job_id", "requested_at"])


def downgrade() -> None:
    """Drop the indexes."""
    op.drop_index(op.f(_REQUESTED), table_name="statecheck_request")
    op.drop_index(_UNDISCARDED, table_name="statecheck_checkpoint")
    op.drop_index(_COMPLETED, table_name="statecheck_checkpoint")
