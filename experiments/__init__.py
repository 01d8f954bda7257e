"""The paper's experiments again, on its problems and with its settings: one script per figure."""
