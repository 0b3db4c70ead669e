"""The schemas of record values that producers write, and the columns that they become."""
