"""Self-consistency: several ways to an answer, and the answer that most of them reach."""

from __future__ import annotations

import re
from collections import Counter

from examples.target import session_of
from headrace.program import Prompt, Session

EXAMPLES = """\
Question: Tom has 3 apples and buys 2 more. How many apples has he?
Reasoning: He begins with 3 and adds 2, which makes 3 + 2 = 5.
Answer: 5

Question: A box holds 4 pens. How many pens are in 3 boxes?
Reasoning: Each box holds 4, and there are 3 of them, which makes 4 * 3 = 12.
Answer: 12

"""
QUESTION = "Anna has 6 books and gives 2 of them away. How many books has she left?"


def run(session: Session, question: str, num_votes: int = 5) -> tuple[str, Counter[str]]:
    """The answer, and how many votes each one got."""
    prompt = session.prompt(f"{EXAMPLES}Question: {question}\nReasoning:")

    def reason(branch: Prompt) -> None:
        branch.gen("reasoning", max_tokens=48, stop="\n", temperature=0.7)
        branch += "\nAnswer:"
        branch.gen("answer", max_tokens=6, stop="\n", temperature=0)

    with prompt.fork(num_votes) as branches:
        session.parallel(reason, branches)
        found = branches.join()
    votes = Counter(_number_in(answer) for answer in found["answer"])
    return votes.most_common(1)[0][0], votes


def _number_in(answer: str) -> str:
    number = re.search(r"-?\d+", answer)
    return number[0] if number else answer.strip()


if __name__ == "__main__":
    with session_of(__doc__) as opened:
        winner, counts = run(opened, QUESTION)
        print(f"{QUESTION}\n{winner}, by {dict(counts)}")
