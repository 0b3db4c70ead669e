"""The client's side of the exchanges that authenticate a connection to Kafka."""
