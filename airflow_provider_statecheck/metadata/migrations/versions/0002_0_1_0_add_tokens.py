"""
Add the tokens of the API.

Revision ID: 0002_0_1_0
Revises: 0001_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_0_1_0"
down_revision = "0001_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "statecheck_token",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("caller", sa.JSON(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=True),
        sa.Column("operator_id", sa.String(length=32), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("attempt_key", sa.String(length=32), nullable=True),
        sa.Column("is_read_only", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_statecheck_token")),
    )
    op.create_index(op.f("idx_statecheck_token_expires_at"), "statecheck_token", ["expires_at"])


def downgrade() -> None:
    """Drop the table; every running attempt then needs a new token."""
    op.drop_index(op.f("idx_statecheck_token_expires_at"), table_name="statecheck_token")
    op.drop_table("statecheck_token")
