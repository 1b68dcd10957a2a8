"""Rivals, each in an environment of its own outside the repository, and the weights they read."""
