"""Parts that only diskless brokers have: an internal listener, and a bucket that tasks can read."""
