"""Schemas that change at random, in each format, and the values of their columns."""
