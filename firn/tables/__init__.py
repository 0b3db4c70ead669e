"""Rules about tables that every process shares: types, transforms, columns, properties, plans of compaction."""
