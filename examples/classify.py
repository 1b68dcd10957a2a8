"""Few-shot classification: labels are chosen by likelihood, so that nothing has to be parsed."""

from __future__ import annotations

from examples.target import session_of
from headrace.program import Prompt, Selection, Session

LABELS = [" positive", " negative"]
EXAMPLES = [
    ("I loved every minute of it.", " positive"),
    ("A dull and tiring mess.", " negative"),
    ("The best meal we had all year.", " positive"),
    ("It broke on the first day.", " negative"),
]
REVIEWS = [
    "What a wonderful film!",
    "Terrible. I want my money back.",
    "The room was dirty and the staff was rude.",
    "Great acting, and a story that stays with you.",
    "I fell asleep after ten minutes, so boring.",
    "My children were happy the whole day.",
]


def run(session: Session, reviews: list[str]) -> list[tuple[str, float]]:
    """The label of each review, and by how much it was likelier than the other (in nats).

    All branches share the examples; the two labels of a review share everything before them.
    """
    prompt = session.prompt()
    for text, label in EXAMPLES:
        prompt += f"Review: {text}\nSentiment:{label}\n\n"

    def classify(pair: tuple[Prompt, str]) -> tuple[str, float]:
        branch, review = pair
        branch += f"Review: {review}\nSentiment:"
        label = branch.select("label", LABELS, end="\n")
        chosen = branch.result("label")
        assert isinstance(chosen, Selection)
        return label.strip(), abs(chosen.scores[0] - chosen.scores[1])

    with prompt.fork(len(reviews)) as branches:
        return session.parallel(classify, zip(branches, reviews, strict=True))


if __name__ == "__main__":
    with session_of(__doc__) as opened:
        for review, (label, margin) in zip(REVIEWS, run(opened, REVIEWS), strict=True):
            print(f"{label:8}  {margin:5.2f}  {review}")
