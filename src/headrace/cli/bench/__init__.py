"""Measure the machine, the kernels, a model, or a server."""
