"""CompactionPolicy and RetentionPolicy: whom they govern, when their tables are due, the runs that are started, what came of them."""
