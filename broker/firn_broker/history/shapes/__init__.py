"""Shapes: how the texts of JSON values follow from the columns of their rows."""
