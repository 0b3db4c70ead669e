"""The replay of dead letters: select letters, decode them again, move those that fit into the table."""
