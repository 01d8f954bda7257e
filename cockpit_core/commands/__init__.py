"""The ``cockpit`` command, one module for each of its words."""
