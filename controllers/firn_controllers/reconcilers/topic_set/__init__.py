"""The reconcilers of TopicSets, and of the lists of topics that they share."""
