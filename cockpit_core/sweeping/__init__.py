"""Many runs of one command: a grid of optimizers, learning rates and seeds over problems."""
