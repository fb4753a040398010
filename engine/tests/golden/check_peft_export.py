"""Checks that peft reads an adapter which the engine exported, and computes the engine's logits with it.

    python check_peft_export.py BASE_FOLDER ADAPTER_FOLDER LOGITS.json [TOLERANCE]

LOGITS.json is {"ids": [tokens], "logit_rows": {"row": [logits after that token]}}. Ends with 0 if every logit is
within TOLERANCE (default 1e-3), with 1 and the largest difference if not.
"""

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base, adapter, expected = sys.argv[1:4]
tolerance = float(sys.argv[4]) if len(sys.argv) > 4 else 1e-3
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, adapter).double().eval()
expected = json.load(open(expected))
with torch.no_grad():
    logits = model(torch.tensor([expected["ids"]])).logits[0]
    with model.disable_adapter():
        without = model(torch.tensor([expected["ids"]])).logits[0]
worst = 0.0
for row, values in expected["logit_rows"].items():
    worst = max(worst, float((logits[int(row)] - torch.tensor(values, dtype=torch.float64)).abs().max()))
print(f"largest difference {worst:.2e}; the adapter moves logits by up to {float((logits - without).abs().max()):.2e}")
sys.exit(0 if worst <= tolerance else 1)
