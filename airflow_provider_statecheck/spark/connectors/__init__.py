"""Sources and sinks: one folder for each store, and the parts that all of them share."""
