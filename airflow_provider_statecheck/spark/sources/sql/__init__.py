"""Ranges of keys of a table or a query of a database, read by SQLAlchemy."""
