"""
Add the figures of checkpoints, and of what each attempt has restored.

Revision ID: 0008_0_1_0
Revises: 0007_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_0_1_0"
down_revision = "0007_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def upgrade() -> None:
    """Add the columns; nothing is known of existing rows."""
    op.add_column("statecheck_checkpoint", sa.Column("summary", sa.JSON(), nullable=True))
    op.add_column("statecheck_attempt", sa.Column("restored_summary", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("statecheck_attempt", "restored_summary")
    op.drop_column("statecheck_checkpoint", "summary")
