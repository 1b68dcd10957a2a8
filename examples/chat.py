"""A conversation of several turns; each turn's prompt begins with all of the one before."""

from __future__ import annotations

from examples.target import session_of
from headrace.program import Session

QUESTIONS = [
    "What is a watermill? Answer in one sentence.",
    "What was it used for?",
    "What replaced it?",
]


def run(session: Session, questions: list[str]) -> list[str]:
    """The answers, each given with the whole conversation before it."""
    prompt = session.prompt().system("You are a friendly historian. You are brief.")
    answers = []
    for question in questions:
        prompt.user(question)
        answers.append(prompt.gen(max_tokens=48, temperature=0))
    return answers


if __name__ == "__main__":
    with session_of(__doc__) as opened:
        for asked, answer in zip(QUESTIONS, run(opened, QUESTIONS), strict=True):
            print(f"> {asked}\n{answer}\n")
