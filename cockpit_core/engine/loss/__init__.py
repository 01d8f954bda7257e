"""What is differentiated, and which part of it belongs to which sample."""
