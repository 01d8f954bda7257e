"""From hooks to statistics: what is captured in a backward pass, reduced and freed layer by layer."""
