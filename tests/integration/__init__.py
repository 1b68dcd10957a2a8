"""Whole servers over real HTTP."""
