"""State serializers: Arrow columns, snapshots and schema compatibility."""
