"""
Create the tables.

Revision ID: 0001_0_1_0
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_0_1_0"
down_revision = None
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "statecheck_attempt",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt_key", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.JSON(), nullable=False),
        sa.Column("start_reason", sa.Text(), nullable=False),
        sa.Column("restored_from", sa.BigInteger(), nullable=True),
        sa.Column("storage_base", sa.Text(), nullable=False),
        sa.Column("num_retained", sa.Integer(), nullable=False),
        sa.Column("checkpoint_timeout_seconds", sa.Float(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", "epoch", name=op.f("pk_statecheck_attempt")),
        sa.UniqueConstraint("attempt_key", name=op.f("uq_statecheck_attempt_attempt_key")),
    )
    op.create_table(
        "statecheck_checkpoint",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("request_key", sa.String(length=32), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("triggered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("discarded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("metadata_uri", sa.Text(), nullable=True),
        sa.Column("metadata_size", sa.BigInteger(), nullable=False),
        sa.Column("metadata_sha256", sa.String(length=64), nullable=False),
        sa.Column("state_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("full_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("failure_reason", sa.String(length=64), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=False),
        sa.Column("unusable_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", name=op.f("pk_statecheck_checkpoint")),
        sa.UniqueConstraint("request_key", name=op.f("uq_statecheck_checkpoint_request_key")),
    )
    op.create_index(
        op.f("idx_statecheck_checkpoint_job_id_operator_id_status"),
        "statecheck_checkpoint",
        ["job_id", "operator_id", "status"],
        unique=False,
    )
    op.create_table(
        "statecheck_job",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("next_checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_statecheck_job")),
    )
    op.create_table(
        "statecheck_operator",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("uid", sa.String(length=500), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", name=op.f("pk_statecheck_operator")),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("statecheck_operator")
    op.drop_table("statecheck_job")
    op.drop_index(op.f("idx_statecheck_checkpoint_job_id_operator_id_status"), table_name="statecheck_checkpoint")
    op.drop_table("statecheck_checkpoint")
    op.drop_table("statecheck_attempt")
