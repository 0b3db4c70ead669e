"""The state that the driver keeps of each topic."""
