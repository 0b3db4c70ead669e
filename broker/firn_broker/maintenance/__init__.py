"""Background work on stored batches: retention, compaction, and the check of bucket against coordinator."""
