"""The schema, what is generated from it, and the one module that knows the wire format."""
