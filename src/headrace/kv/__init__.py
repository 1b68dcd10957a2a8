"""Paged KV: layout, block pool, block tables."""
