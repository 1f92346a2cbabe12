"""
Add the damaged snapshots of each operator.

Revision ID: 0007_0_1_0
Revises: 0006_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_0_1_0"
down_revision = "0006_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"

_OPERATOR = sa.table("statecheck_operator", sa.column("damaged_snapshots", sa.JSON()))


def upgrade() -> None:
    """Add the column; existing operators have no damaged snapshots."""
    with op.batch_alter_table("statecheck_operator") as changed:
        changed.add_column(sa.Column("damaged_snapshots", sa.JSON(), nullable=True))
    op.execute(sa.update(_OPERATOR).values(damaged_snapshots=[]))
    with op.batch_alter_table("statecheck_operator") as changed:
        changed.alter_column("damaged_snapshots", existing_type=sa.JSON(), nullable=False)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("statecheck_operator", "damaged_snapshots")
