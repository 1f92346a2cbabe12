"""Alembic environment for the tables of this package in Airflow's database."""

from __future__ import annotations

from typing import Any

from airflow import settings
from alembic import context

from airflow_provider_statecheck.metadata.tables import METADATA, VERSION_TABLE

_OPTIONS: dict[str, Any] = {
    "target_metadata": METADATA,
    "version_table": VERSION_TABLE,
    "render_as_batch": True,
    "compare_type": True,
    "transaction_per_migration": True,
    "include_object": lambda thing, name, kind, reflected, other: kind != "table" or name in METADATA.tables,
}


def run_offline() -> None:
    """Print the statements instead of running them."""
    context.configure(url=settings.SQL_ALCHEMY_CONN, literal_binds=True, **_OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run the statements in Airflow's database."""
    with settings.get_engine().connect() as connection:
        context.configure(connection=connection, **_OPTIONS)
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
