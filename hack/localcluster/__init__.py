"""The test cluster and the images that run on it: the code of `hack/cluster` and `hack/images/build`.

Standard library only: it runs on a fresh machine before any virtual environment exists.
"""
