"""State backends by name, and how one is chosen."""
