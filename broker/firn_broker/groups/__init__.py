"""Consumer groups: the state machines of both protocols, and the assignment of groups to brokers."""
