"""Lookahead allocation: how many blocks requests will need, whom to admit and whom to preempt."""
