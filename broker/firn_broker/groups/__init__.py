"""Groups of consumers: the classic protocol's state machine, and which broker has which group."""
