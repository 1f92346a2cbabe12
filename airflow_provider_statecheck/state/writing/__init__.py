"""State from data: new savepoints whose state was computed elsewhere, or edited."""
