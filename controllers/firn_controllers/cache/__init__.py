"""What the watches last showed, indexed for the questions that reconcilers ask."""
