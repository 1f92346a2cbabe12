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

_TIME = sa.DateTime(timezone=True)
_NAME = sa.String(500).with_variant(sa.String(500, collation="C"), "postgresql")
_UNDISCARDED = sa.text("discarded_at IS NULL")

_TABLES: dict[str, tuple[sa.schema.SchemaItem, ...]] = {
    "statecheck_job": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("next_checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", _TIME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("status", sa.String(16)),
        sa.Column("checkpoint_id", sa.BigInteger()),
        sa.Column("completed_at", _TIME),
        sa.Column("full_size_bytes", sa.BigInteger()),
        sa.Column("failed_at", _TIME),
        sa.Column("failure", sa.Text()),
        sa.PrimaryKeyConstraint("job_id", name="pk_statecheck_job"),
    ),
    "statecheck_job_dag": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", "dag_id", name="pk_statecheck_job_dag"),
        sa.Index("idx_statecheck_job_dag_dag_id_job_id", "dag_id", "job_id"),
    ),
    "statecheck_operator": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("uid", sa.String(500), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("first_run", sa.Text(), nullable=False),
        sa.Column("damaged_snapshots", sa.JSON(), nullable=False),
        sa.Column("next_restore", sa.BigInteger()),
        sa.Column("pinned_checkpoint", sa.BigInteger()),
        sa.Column("in_place_restore", sa.String(32)),
        sa.PrimaryKeyConstraint("job_id", "operator_id", name="pk_statecheck_operator"),
    ),
    "statecheck_attempt": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt_key", sa.String(32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("owner", sa.JSON(), nullable=False),
        sa.Column("start_reason", sa.Text(), nullable=False),
        sa.Column("restored_from", sa.BigInteger()),
        sa.Column("storage_base", sa.Text(), nullable=False),
        sa.Column("num_retained", sa.Integer(), nullable=False),
        sa.Column("retained_runs", sa.Integer(), nullable=False),
        sa.Column("checkpoint_timeout_seconds", sa.Float(), nullable=False),
        sa.Column("registered_at", _TIME, nullable=False),
        sa.Column("retention", sa.String(32), nullable=False),
        sa.Column("is_restore_chosen", sa.Boolean(), nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("restored_summary", sa.JSON()),
        sa.PrimaryKeyConstraint("job_id", "operator_id", "epoch", name="pk_statecheck_attempt"),
        sa.UniqueConstraint("attempt_key", name="uq_statecheck_attempt_attempt_key"),
    ),
    "statecheck_checkpoint": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("request_key", sa.String(32), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("run_key", sa.Text(), nullable=False),
        sa.Column("triggered_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("is_periodic", sa.Boolean(), nullable=False),
        sa.Column("finalizer", sa.String(32)),
        sa.Column("lease_until", _TIME),
        sa.Column("completed_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.Column("discarded_at", _TIME),
        sa.Column("metadata_uri", sa.Text()),
        sa.Column("metadata_size", sa.BigInteger(), nullable=False),
        sa.Column("metadata_sha256", sa.String(64), nullable=False),
        sa.Column("state_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("full_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON()),
        sa.Column("failure_reason", sa.String(64)),
        sa.Column("failure_message", sa.Text(), nullable=False),
        sa.Column("unusable_reason", sa.Text()),
        sa.Column("has_open_commit", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", name="pk_statecheck_checkpoint"),
        sa.UniqueConstraint("request_key", name="uq_statecheck_checkpoint_request_key"),
        sa.Index("idx_statecheck_checkpoint_completed", "job_id", "operator_id", "generation", "completed_at"),
        sa.Index("idx_statecheck_checkpoint_job_id_operator_id_discarded_at", "job_id", "operator_id", "discarded_at"),
        sa.Index(
            "idx_statecheck_checkpoint_undiscarded",
            "job_id",
            "operator_id",
            postgresql_where=_UNDISCARDED,
            sqlite_where=_UNDISCARDED,
        ),
    ),
    "statecheck_acknowledgement": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("attempt_id", sa.String(600), nullable=False),
        sa.Column("is_finished", sa.Boolean(), nullable=False),
        sa.Column("manifest_uri", sa.Text()),
        sa.Column("manifest_size", sa.BigInteger(), nullable=False),
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("state_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("full_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("acknowledged_at", _TIME),
        sa.PrimaryKeyConstraint("job_id", "checkpoint_id", "operator_id", name="pk_statecheck_acknowledgement"),
    ),
    "statecheck_request": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("request_key", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("target", sa.Text()),
        sa.Column("is_periodic", sa.Boolean(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("requested_at", _TIME, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger()),
        sa.Column("ended_at", _TIME),
        sa.Column("failure_reason", sa.String(64)),
        sa.Column("failure_message", sa.Text(), nullable=False),
        sa.Column("failed_by", sa.String(32)),
        sa.PrimaryKeyConstraint("job_id", "request_key", name="pk_statecheck_request"),
        sa.Index("idx_statecheck_request_job_id_operator_id_status", "job_id", "operator_id", "status"),
        sa.Index("idx_statecheck_request_job_id_requested_at", "job_id", "requested_at"),
    ),
    "statecheck_action": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("request_key", sa.String(32), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("operator_id", sa.String(32)),
        sa.Column("checkpoint_id", sa.BigInteger()),
        sa.Column("run_key", sa.Text(), nullable=False),
        sa.Column("restore", sa.JSON()),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("requested_at", _TIME, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "request_key", name="pk_statecheck_action"),
        sa.Index("idx_statecheck_action_job_id_requested_at", "job_id", "requested_at"),
    ),
    "statecheck_claim": (
        sa.Column("pointer_sha256", sa.String(64), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("claimed_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("pointer_sha256", name="pk_statecheck_claim"),
    ),
    "statecheck_statistics": (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", name="pk_statecheck_statistics"),
    ),
    "statecheck_token": (
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("caller", sa.JSON(), nullable=False),
        sa.Column("job_id", sa.String(32)),
        sa.Column("operator_id", sa.String(32)),
        sa.Column("epoch", sa.Integer()),
        sa.Column("attempt_key", sa.String(32)),
        sa.Column("is_read_only", sa.Boolean(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_statecheck_token"),
        sa.Index("idx_statecheck_token_expires_at", "expires_at"),
    ),
}


def upgrade() -> None:
    """Create the tables with their indexes."""
    for name, items in _TABLES.items():
        op.create_table(name, *items)


def downgrade() -> None:
    """Drop the tables; the state of the jobs remains on storage."""
    for name in _TABLES:
        op.drop_table(name)
