"""Diskless brokers (``firn_broker``): pods without state, over a bucket and a database."""
