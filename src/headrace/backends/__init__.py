"""Backends: run step plans over packed weights and a paged KV arena."""
