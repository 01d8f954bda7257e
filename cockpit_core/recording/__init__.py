"""From the statistics of a step to its record, and what a run says about itself."""
