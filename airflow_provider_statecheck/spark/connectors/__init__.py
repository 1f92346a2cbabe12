"""Sources and sinks: one folder for each store, and beside them what all of them share."""
