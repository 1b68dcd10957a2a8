"""The verbs, in the order that help lists them. Verb X is the function X of headrace.cli.X."""

from __future__ import annotations

VERBS = ("serve", "run", "chat", "batch", "pull", "doctor", "bench", "version")
