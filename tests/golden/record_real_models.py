"""Records real_models.npz: what transformers computes in float32 for the real GGUF test models.

Run from the repository's root, in an environment with torch, transformers, gguf and numpy:

    PYTHONPATH=.:src python tests/golden/record_real_models.py FOLDER_OF_THE_GGUF_FILES

transformers dequantizes the files itself. Per model: `prompt` (token ids), `x.l` the residual
stream after layer l (last row, first 64 columns), `top_ids` and `top_logits` of the last row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.support.real_models import GEMMA3, QWEN25, SMOLLM2, RealModel

GOLDEN_FILE = Path(__file__).with_name("real_models.npz")
NUM_COLUMNS = 64
NUM_TOP = 20
TEXT = (
    "A headrace carries water to the wheel of a mill. When the river ebbs, the gate shuts, and"
    " nothing is spent; when it rises, the wheel turns at once. 17 mills stood between Ålesund and"
    " the sea in 1843, and 9 of them ground flour: def flow(area, speed): return area * speed\n"
)


def main() -> None:
    """Record the three models; gemma's prompt is longer than its window of 512."""
    folder = Path(sys.argv[1])
    arrays: dict[str, Any] = {}
    for model, prompt_len in ((SMOLLM2, 64), (QWEN25, 64), (GEMMA3, 560)):
        recorded = record(model, folder, prompt_len)
        arrays |= {f"{model.name}/{name}": values for name, values in recorded.items()}
        print(model.name, recorded["top_ids"][:5], recorded["top_logits"][:5], file=sys.stderr)
    np.savez_compressed(GOLDEN_FILE, **arrays)


def record(real: RealModel, folder: Path, prompt_len: int) -> dict[str, Any]:
    """One forward pass over the start of the text, repeated."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=real.file_name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=real.file_name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompt = tokenizer(TEXT * 10).input_ids[:prompt_len]
    out: dict[str, Any] = {"prompt": np.array(prompt, np.int32)}

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            out[name] = values.detach().numpy().reshape(prompt_len, -1)[-1, :NUM_COLUMNS].copy()

        return hook

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(keep(f"x.{index}"))
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[0, -1]
    top = torch.topk(logits, NUM_TOP)
    return out | {"top_ids": top.indices.numpy(), "top_logits": top.values.numpy()}


if __name__ == "__main__":
    main()
