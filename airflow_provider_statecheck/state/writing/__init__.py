"""Writing of savepoints from Arrow tables, new or based on a checkpoint."""
