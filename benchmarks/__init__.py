"""Benchmarks: speed and accuracy beside rivals, in one run, with raw rows."""
