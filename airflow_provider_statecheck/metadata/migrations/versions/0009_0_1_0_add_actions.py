"""
Add the actions that users request, and the checkpoint that they choose for the next attempt of an operator.

Revision ID: 0009_0_1_0
Revises: 0008_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_0_1_0"
down_revision = "0008_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def upgrade() -> None:
    """Add the table and the columns; no user has chosen the checkpoint of an existing attempt."""
    _create_actions()
    with op.batch_alter_table("statecheck_operator") as changed:
        changed.add_column(sa.Column("next_restore", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("statecheck_attempt") as changed:
        # An api-server of the version before, which does not know the column, registers attempts until its restart.
        chosen = sa.Column("is_restore_chosen", sa.Boolean(), nullable=False, server_default=sa.false())
        changed.add_column(chosen)


def _create_actions() -> None:
    op.create_table(
        "statecheck_action",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("request_key", sa.String(32), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=True),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=True),
        sa.Column("run_key", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "request_key", name="pk_statecheck_action"),
    )
    op.create_index("idx_statecheck_action_job_id_requested_at", "statecheck_action", ["job_id", "requested_at"])


def downgrade() -> None:
    """Drop the columns and the table."""
    op.drop_column("statecheck_attempt", "is_restore_chosen")
    op.drop_column("statecheck_operator", "next_restore")
    op.drop_table("statecheck_action")
