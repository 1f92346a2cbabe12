"""Every type of Spark in every place: written and read equal, or refused before any work."""
