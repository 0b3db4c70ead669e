"""The schemas of writers, for ingestion and for replays of dead letters."""
