"""Reading of checkpointed state as Arrow tables, without the user's code."""
