"""Measurements: of the machine, of the kernels, of a model's engine, and of a server under load."""
