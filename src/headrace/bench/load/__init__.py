"""A load generator for any OpenAI-compatible server: arrivals, prompts, client, statistics."""
