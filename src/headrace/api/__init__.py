"""HTTP dialects over the gateway."""
