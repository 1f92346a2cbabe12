"""Iceberg sink: ledger, writer, catalogs and checks of tables."""
