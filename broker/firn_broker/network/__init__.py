"""Connections within memory bounds, and the dispatch of requests to their handlers."""
