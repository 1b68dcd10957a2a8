"""Tree of thought: of several next steps the most promising is kept, the others are forgotten."""

from __future__ import annotations

from examples.target import session_of
from headrace.program import Prompt, Selection, Session

QUESTION = (
    "A farmer has 17 sheep. All but 9 run away, then he buys 5 more. How many sheep has he now?"
)
VERDICTS = [" yes", " no"]


def promise(branch: Prompt) -> float:
    """How likely the model finds it that the steps so far are right: a judgement in a branch of its
    own, so that it is no part of the solution."""
    with branch.fork(1) as judges:
        judges[0].append("\nAre the steps so far right, yes or no? Answer:")
        judges[0].select("verdict", VERDICTS)
        verdict = judges[0].result("verdict")
    assert isinstance(verdict, Selection)
    return verdict.scores[0] - verdict.scores[1]


def run(session: Session, question: str, width: int = 3, depth: int = 3) -> tuple[str, str]:
    """The steps that were kept, and the answer."""
    prompt = session.prompt(f"Question: {question}\nLet us think step by step.\n")

    def think(branch: Prompt) -> float:
        branch.gen(max_tokens=32, stop="\n", temperature=0.9)
        branch += "\n"
        return promise(branch)

    for step in range(1, depth + 1):
        prompt += f"Step {step}:"
        with prompt.fork(width) as branches:
            values = session.parallel(think, branches)
            branches.join(keep=branches[values.index(max(values))])
    steps = prompt.text
    prompt += "Therefore, the answer is:"
    return steps, prompt.gen("answer", max_tokens=12, stop="\n", temperature=0)


if __name__ == "__main__":
    with session_of(__doc__) as opened:
        steps, answer = run(opened, QUESTION)
        print(f"{steps}Answer:{answer}")
