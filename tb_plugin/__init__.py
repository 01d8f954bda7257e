"""The TensorBoard host. TensorBoard imports this package at every start: nothing may be imported here."""
