"""Delta sink and source: tables, their logs, records, writers and checks."""
