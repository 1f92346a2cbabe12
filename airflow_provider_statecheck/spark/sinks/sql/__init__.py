"""Output that goes to a table of a database, in one transaction with the log of commits."""
