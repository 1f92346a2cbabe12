"""SQL sink: tables of a database that commit together with their log."""
