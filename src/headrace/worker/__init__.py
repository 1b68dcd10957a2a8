"""The worker process: one model, one engine loop, frames in and out."""
