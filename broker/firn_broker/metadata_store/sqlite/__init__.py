"""The embedded coordinator: a SQLite file for one process, or SQLite in memory for simulations and tests."""
