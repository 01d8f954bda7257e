"""Cheap numbers about what goes in and out of a training step: the evidence of diagnoses.

One file each; a function takes tensors and returns numbers by name. Nothing here draws random numbers, writes into a
tensor or keeps one longer than the step. In a record they are scalars called ``signal/<name>``; a name that ends in
``_where`` is the place of a parameter in the header's layers, or of a module in its option "activations".
"""
