"""Discrete-event simulator: the real engine over a backend whose time is virtual."""
