"""DB manager that creates and upgrades the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.utils.db_manager import BaseDBManager

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.metadata.provider_tables import ProviderTables
from airflow_provider_statecheck.metadata.tables import METADATA, VERSION_TABLE
from airflow_provider_statecheck.overriding import override

_HERE = Path(__file__).parent

_NO_TABLES = "base"
REVISION_HEADS = {"0.1.0": "0001_0_1_0"}


class StatecheckDBManager(BaseDBManager):
    """Manager of the tables ``statecheck_*``, which have their own version table."""

    metadata = METADATA
    version_table_name = VERSION_TABLE
    migration_dir = (_HERE / "migrations").as_posix()
    alembic_file = (_HERE / "alembic.ini").as_posix()
    supports_table_dropping = True
    revision_heads_map = REVISION_HEADS

    def bring_up_to_date(self) -> bool:
        """
        Create the tables, or upgrade them to this version, if they are not of this version.

        :return: Whether the tables changed.
        :raises EnvironmentNotReadyError: if a newer version has upgraded the tables.
        """
        if self.check_migration():  # type: ignore[no-untyped-call]
            return False
        self.upgradedb()
        return True

    @override
    def upgradedb(self, *args: Any, **options: Any) -> None:
        """
        Upgrade the tables, with the arguments of the base class.

        :raises EnvironmentNotReadyError: if a newer version has upgraded the tables.
        """
        self._require_known_revision()
        super().upgradedb(*args, **options)  # type: ignore[no-untyped-call]

    def _require_known_revision(self) -> None:
        found: str | None = self.get_current_revision()  # type: ignore[no-untyped-call]
        known = [script.revision for script in self.get_script_object().walk_revisions()]
        if found is not None and found not in known:
            raise EnvironmentNotReadyError(
                f"Expected tables statecheck_* of revision {known[0]} or earlier, found {found} of a newer version of "
                "airflow-provider-statecheck; install that version again, or downgrade the tables with it."
            )

    @override
    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """
        Downgrade the tables to an earlier revision.

        :param to_revision: Target revision; ``base`` removes all tables, with the one of the version.
        :param from_revision: First revision of the printed statements. The default is the newest revision.
        :param show_sql_only: Print the statements instead of running them.
        """
        from alembic import command

        config: Any = self.get_alembic_config()  # type: ignore[no-untyped-call]
        # Without a database, alembic needs both revisions.
        revision = f"{from_revision or 'heads'}:{to_revision}" if show_sql_only else to_revision
        command.downgrade(config, revision, sql=show_sql_only)
        if to_revision == _NO_TABLES and not show_sql_only:
            # Alembic leaves the table of the version, without a row.
            ProviderTables(self.session.get_bind()).drop()
