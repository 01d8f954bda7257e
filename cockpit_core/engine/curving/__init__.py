"""Curvature of the step's own loss: where it is asked for, by which graph, and what all processes have together."""
