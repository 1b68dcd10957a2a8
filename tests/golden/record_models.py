"""Records tiny_models.npz: what transformers computes in float32 for the models of cases.py.

Run from the repository's root, in an environment with torch, transformers and numpy:

    PYTHONPATH=.:src python tests/golden/record_models.py

Per case and layer l: `x.l` is the residual stream after the layer; `att.l` and `mlp.l` are the
outputs of its two branches before any post-norm (last rows only); `final` is the normed last hidden
state and `logits` the logits of the last rows; `inv_freq.i` is rope table i of the Program.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headrace.weights.base import DType
from tests.golden.cases import CASES, GOLDEN_FILE, Case
from tests.support.make_model import make_hf

LAST_ROWS = 3


def main() -> None:
    """Record every case."""
    arrays: dict[str, Any] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            recorded = record(case, Path(folder))
        arrays |= {f"{case.name}/{name}": values for name, values in recorded.items()}
        print(case.name, sum(a.nbytes for a in recorded.values()), file=sys.stderr)
    np.savez_compressed(GOLDEN_FILE, **arrays)


def record(case: Case, folder: Path) -> dict[str, np.ndarray]:
    """One forward pass of one case."""
    make_hf(folder, dtype=DType.F32, **case.arguments)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    out: dict[str, np.ndarray] = {}

    def keep(name: str, last: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            out[name] = values.detach().numpy().reshape(len(case.prompt), -1)[-last:].copy()

        return hook

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(keep(f"x.{index}", len(case.prompt)))
        layer.self_attn.register_forward_hook(keep(f"att.{index}", LAST_ROWS))
        layer.mlp.register_forward_hook(keep(f"mlp.{index}", LAST_ROWS))
    model.model.norm.register_forward_hook(keep("final", LAST_ROWS))
    with torch.inference_mode():
        logits = model(torch.tensor([case.prompt]), use_cache=False).logits[0]
    out["logits"] = logits[-LAST_ROWS:].numpy()
    # One frequency table, or one of the full and one of the window layers, in this order.
    tables = (b for n, b in model.named_buffers() if n.endswith("inv_freq") and "original" not in n)
    return out | {f"inv_freq.{i}": table.numpy() for i, table in enumerate(tables)}


if __name__ == "__main__":
    main()
