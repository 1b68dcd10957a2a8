"""Programs that share prefixes, as people write them: what run 17 measures."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from headrace.program import Prompt, Selection, Session

LABELS = [" money", " food", " time"]
VERDICTS = [" yes", " no"]


class Pieces:
    """Different pieces of a text, one after the other, each ending with a whole word."""

    def __init__(self, body: str) -> None:
        words = " ".join(body.split())
        self._words: Iterator[str] = iter(textwrap.wrap(words, 80, break_on_hyphens=False))

    def take(self, num_lines: int) -> str:
        """The next lines of 80 characters, some 20 tokens each."""
        return "\n".join(next(self._words) for _ in range(num_lines))


def few_shot(session: Session, pieces: Pieces) -> None:
    """Classification by likelihood: all texts share the examples, all labels share the text."""
    prompt = session.prompt("Say what each text is about.\n\n")
    for number in range(8):
        prompt += f"{pieces.take(4)}\nAbout:{LABELS[number % len(LABELS)]}\n\n"
    texts = [pieces.take(3) for _ in range(8)]

    def classify(pair: tuple[Prompt, str]) -> None:
        branch, text = pair
        branch += f"{text}\nAbout:"
        branch.select("about", LABELS, end="\n")

    with prompt.fork(len(texts)) as branches:
        session.parallel(classify, zip(branches, texts, strict=True))


def multi_turn(session: Session, pieces: Pieces) -> None:
    """Three conversations at a time that begin with the same instructions."""
    instructions = f"You help with problems such as these.\n{pieces.take(24)}"
    questions = [[pieces.take(3) for _ in range(6)] for _ in range(3)]

    def talk(turns: list[str]) -> None:
        prompt = session.prompt().system(instructions)
        for question in turns:
            prompt.user(question)
            prompt.gen(max_tokens=32, temperature=0.7)

    session.parallel(talk, questions)


def tree_of_thought(session: Session, pieces: Pieces) -> None:
    """Of three next steps the most promising is kept, three times; a judge looks at each."""
    prompt = session.prompt(f"{pieces.take(24)}\n\nQuestion: {pieces.take(4)}\n")

    def think(branch: Prompt) -> float:
        branch.gen(max_tokens=32, stop="\n", temperature=0.9)
        branch += "\n"
        with branch.fork(1) as judges:
            judges[0].append("Is this step right, yes or no? Answer:")
            judges[0].select("verdict", VERDICTS)
            verdict = judges[0].result("verdict")
        assert isinstance(verdict, Selection)
        return verdict.scores[0] - verdict.scores[1]

    for step in range(1, 4):
        prompt += f"Step {step}:"
        with prompt.fork(3) as branches:
            values = session.parallel(think, branches)
            branches.join(keep=branches[values.index(max(values))])
    prompt += "So the answer is:"
    prompt.gen("answer", max_tokens=12, stop="\n", temperature=0)


def self_consistency(session: Session, pieces: Pieces) -> None:
    """Eight ways to an answer, each with an answer of its own at its end."""
    prompt = session.prompt()
    for _ in range(6):
        prompt += f"Question: {pieces.take(5)}\nAnswer: {pieces.take(1)}\n\n"
    prompt += f"Question: {pieces.take(4)}\nReasoning:"

    def reason(branch: Prompt) -> None:
        branch.gen("reasoning", max_tokens=48, stop="\n", temperature=0.7)
        branch += "\nAnswer:"
        branch.gen("answer", max_tokens=6, stop="\n", temperature=0)

    with prompt.fork(8) as branches:
        session.parallel(reason, branches)
        branches.join()


PROGRAMS: dict[str, Callable[[Session, Pieces], None]] = {
    "few-shot": few_shot,
    "multi-turn": multi_turn,
    "tree-of-thought": tree_of_thought,
    "self-consistency": self_consistency,
}
