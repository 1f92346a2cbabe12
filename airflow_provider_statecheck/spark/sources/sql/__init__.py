"""Key-range reads of a SQL database through SQLAlchemy."""
