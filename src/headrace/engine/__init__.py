"""The engine: requests, scheduler, step, commit, offline API."""
