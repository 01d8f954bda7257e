"""Training programs written without knowledge of Cockpit's rules, with and without bugs: an independent test of its findings."""
