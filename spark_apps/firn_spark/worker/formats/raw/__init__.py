"""Raw records: keys and values pass through as they are."""
