"""Writing, reading and following event files. Needs numpy and protobuf, never torch or TensorBoard."""
