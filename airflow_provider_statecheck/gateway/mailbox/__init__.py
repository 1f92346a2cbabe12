"""Gateway through files of the checkpoint storage, for drivers that reach the storage and nothing else."""
