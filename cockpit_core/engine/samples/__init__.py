"""Which rows of a tensor belong to which sample, followed through the user's graph."""
