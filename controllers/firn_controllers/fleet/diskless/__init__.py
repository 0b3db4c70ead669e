"""Diskless brokers (``firn_broker``): pods that keep nothing, over a bucket and a database."""
