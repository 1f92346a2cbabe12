"""What a checkpoint is and how it lives. Standard library only."""
