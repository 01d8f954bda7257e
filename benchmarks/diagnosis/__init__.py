"""Does Cockpit say what is wrong, and nothing where nothing is? Seeded faults and healthy runs of small programs."""
