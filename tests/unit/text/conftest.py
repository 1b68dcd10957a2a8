"""The default model's tokenizer, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.text.vocabulary import VocabularyTokenizer
from tests.support.text_specs import load_model_tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> VocabularyTokenizer:
    return load_model_tokenizer(smollm2_path)
