"""The test cluster and the images that run on it: what `hack/cluster` and `hack/images/build` are made of.

Standard library only: it runs on a fresh machine before any virtual environment exists.
"""
