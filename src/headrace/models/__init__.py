"""Architectures, each declared once as a Program that every backend lowers."""
