"""
Add the run of each checkpoint, the first run of each generation, and the number of retained runs.

Revision ID: 0005_0_1_0
Revises: 0004_0_1_0
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005_0_1_0"
down_revision = "0004_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"


def _table(name: str, **columns: sa.types.TypeEngine[Any]) -> sa.TableClause:
    keys = {"job_id": sa.String(), "operator_id": sa.String()}
    return sa.table(f"statecheck_{name}", *(sa.column(column, kind) for column, kind in (keys | columns).items()))


_ATTEMPT = _table(
    "attempt",
    epoch=sa.Integer(),
    generation=sa.Integer(),
    owner=sa.JSON(),
    restored_from=sa.Integer(),
    retained_runs=sa.Integer(),
)
_CHECKPOINT = _table("checkpoint", epoch=sa.Integer(), run_key=sa.Text())
_OPERATOR = _table("operator", generation=sa.Integer(), first_run=sa.Text())
_NEW = (
    ("attempt", "retained_runs", sa.Integer()),
    ("checkpoint", "run_key", sa.Text()),
    ("operator", "first_run", sa.Text()),
)


def upgrade() -> None:
    """Add the columns, and fill them from the rows of attempts."""
    for table, column, kind in _NEW:
        with op.batch_alter_table(f"statecheck_{table}") as changed:
            changed.add_column(sa.Column(column, kind, nullable=True))
    op.execute(sa.update(_ATTEMPT).values(retained_runs=1))
    op.execute(sa.update(_CHECKPOINT).values(run_key=_run_of(_CHECKPOINT, _ATTEMPT.c.epoch == _CHECKPOINT.c.epoch)))
    # Rows of earlier attempts may have been removed; only an attempt without a restore started a generation.
    is_first = sa.and_(_ATTEMPT.c.generation == _OPERATOR.c.generation, _ATTEMPT.c.restored_from.is_(None))
    op.execute(sa.update(_OPERATOR).values(first_run=_run_of(_OPERATOR, is_first)))
    for table, column, kind in _NEW:
        with op.batch_alter_table(f"statecheck_{table}") as changed:
            changed.alter_column(column, existing_type=kind, nullable=False)


def _run_of(table: sa.TableClause, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[str]:
    is_of_row = sa.and_(_ATTEMPT.c.job_id == table.c.job_id, _ATTEMPT.c.operator_id == table.c.operator_id, condition)
    run = sa.select(_ATTEMPT.c.owner["run_key"].as_string()).where(is_of_row).order_by(_ATTEMPT.c.epoch).limit(1)
    return sa.func.coalesce(run.correlate(table).scalar_subquery(), "")


def downgrade() -> None:
    """Drop the columns."""
    for table, column, _ in _NEW:
        op.drop_column(f"statecheck_{table}", column)
