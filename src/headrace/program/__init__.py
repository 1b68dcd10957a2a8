"""Prompts with control flow: gen, select, fork and join, in plain Python. See docs/program.md."""

from headrace.program.branches import AsyncBranches, Branches
from headrace.program.prompt import Answer, AsyncPrompt, Prompt, Selection
from headrace.program.session import AsyncSession, Session

__all__ = [
    "Answer",
    "AsyncBranches",
    "AsyncPrompt",
    "AsyncSession",
    "Branches",
    "Prompt",
    "Selection",
    "Session",
]
