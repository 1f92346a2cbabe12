"""
Add the state handles and their locks.

Revision ID: 0003_0_1_0
Revises: 0002_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_0_1_0"
down_revision = "0002_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "statecheck_state_handle",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("handle", sa.LargeBinary(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("deleting", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", "name", name=op.f("pk_statecheck_state_handle")),
    )
    op.create_table(
        "statecheck_state_handle_lock",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "job_id", "operator_id", "name", "holder", name=op.f("pk_statecheck_state_handle_lock")
        ),
    )


def downgrade() -> None:
    """Drop the tables; the state of the handles remains on storage."""
    op.drop_table("statecheck_state_handle_lock")
    op.drop_table("statecheck_state_handle")
