"""Prefix cache: keys and values of earlier requests, found again by their tokens."""
