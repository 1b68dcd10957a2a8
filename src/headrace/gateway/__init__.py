"""The gateway process: admission, worker supervision, routing of token streams."""
