"""Previews of changed resources: what the operator would do with them. Pure, with the decisions of the reconcilers."""
