"""Nouns that every process shares, and contracts between processes. Imports only the standard library and pydantic."""
