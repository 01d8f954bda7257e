"""What a user holds: ``track``, the run, when it measures, and how it ends."""
