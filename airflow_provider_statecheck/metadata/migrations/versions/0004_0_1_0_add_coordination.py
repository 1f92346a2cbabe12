"""
Add requests, acknowledgements, claims, statistics, properties of checkpoints, and open commits.

Revision ID: 0004_0_1_0
Revises: 0003_0_1_0
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_0_1_0"
down_revision = "0003_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"

_CHECKPOINT = {
    "snapshot_type": "checkpoint",
    "savepoint_format": None,
    "force": False,
    "discard_on_subsumed": True,
    "discard_on_finished": True,
    "discard_on_cancelled": False,
    "discard_on_failed": False,
    "discard_on_suspended": False,
    "unclaimed": False,
}


def upgrade() -> None:
    """Add the tables and columns; all existing rows are checkpoints, not savepoints."""
    _find_open_checkpoints_fast()
    _add_columns()
    _add_retention()
    _create_acknowledgement()
    _create_request()
    op.create_table(
        "statecheck_claim",
        sa.Column("pointer_sha256", sa.String(length=64), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("pointer_sha256", name=op.f("pk_statecheck_claim")),
    )
    op.create_table(
        "statecheck_statistics",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", name=op.f("pk_statecheck_statistics")),
    )


def _find_open_checkpoints_fast() -> None:
    op.drop_index(op.f("idx_statecheck_checkpoint_job_id_operator_id_status"), table_name="statecheck_checkpoint")
    op.create_index(
        op.f("idx_statecheck_checkpoint_job_id_operator_id_discarded_at"),
        "statecheck_checkpoint",
        ["job_id", "operator_id", "discarded_at"],
    )


def _add_columns() -> None:
    with op.batch_alter_table("statecheck_checkpoint") as table:
        table.add_column(sa.Column("properties", sa.JSON(), nullable=True))
        table.add_column(sa.Column("is_periodic", sa.Boolean(), nullable=True))
        table.add_column(sa.Column("finalizer", sa.String(length=32), nullable=True))
        table.add_column(sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))
        table.add_column(sa.Column("has_open_commit", sa.Boolean(), nullable=True))
    flags = (sa.column("is_periodic", sa.Boolean()), sa.column("has_open_commit", sa.Boolean()))
    rows = sa.table("statecheck_checkpoint", sa.column("properties", sa.JSON()), *flags)
    op.execute(sa.update(rows).values(properties=_CHECKPOINT, is_periodic=False, has_open_commit=False))
    with op.batch_alter_table("statecheck_checkpoint") as table:
        table.alter_column("properties", existing_type=sa.JSON(), nullable=False)
        table.alter_column("is_periodic", existing_type=sa.Boolean(), nullable=False)
        table.alter_column("has_open_commit", existing_type=sa.Boolean(), nullable=False)


def _add_retention() -> None:
    with op.batch_alter_table("statecheck_attempt") as table:
        table.add_column(sa.Column("retention", sa.String(length=32), nullable=True))
    rows = sa.table("statecheck_attempt", sa.column("retention", sa.String()))
    op.execute(sa.update(rows).values(retention="retain_on_cancellation"))
    with op.batch_alter_table("statecheck_attempt") as table:
        table.alter_column("retention", existing_type=sa.String(length=32), nullable=False)


def _create_acknowledgement() -> None:
    op.create_table(
        "statecheck_acknowledgement",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("attempt_id", sa.String(length=255), nullable=False),
        sa.Column("is_finished", sa.Boolean(), nullable=False),
        sa.Column("manifest_uri", sa.Text(), nullable=True),
        sa.Column("manifest_size", sa.BigInteger(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("state_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("full_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", "operator_id", name=op.f("pk_statecheck_acknowledgement")),
    )


def _create_request() -> None:
    op.create_table(
        "statecheck_request",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("request_key", sa.String(length=32), nullable=False),
        sa.Column("operator_id", sa.String(length=32), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("is_periodic", sa.Boolean(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure_reason", sa.String(length=64), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "request_key", name=op.f("pk_statecheck_request")),
    )
    op.create_index(
        op.f("idx_statecheck_request_job_id_operator_id_status"),
        "statecheck_request",
        ["job_id", "operator_id", "status"],
    )


def downgrade() -> None:
    """Drop the tables and columns; savepoints are no longer known to the database and remain on storage."""
    op.drop_table("statecheck_statistics")
    op.drop_table("statecheck_claim")
    op.drop_index(op.f("idx_statecheck_request_job_id_operator_id_status"), table_name="statecheck_request")
    op.drop_table("statecheck_request")
    op.drop_table("statecheck_acknowledgement")
    # The older release does not know these statuses and would treat the rows as checkpoints.
    op.execute("DELETE FROM statecheck_checkpoint WHERE status IN ('finalizing', 'disposed')")
    op.drop_index(op.f("idx_statecheck_checkpoint_job_id_operator_id_discarded_at"), table_name="statecheck_checkpoint")
    op.create_index(
        op.f("idx_statecheck_checkpoint_job_id_operator_id_status"),
        "statecheck_checkpoint",
        ["job_id", "operator_id", "status"],
    )
    op.drop_column("statecheck_attempt", "retention")
    for column in ("has_open_commit", "lease_until", "finalizer", "is_periodic", "properties"):
        op.drop_column("statecheck_checkpoint", column)
