"""Adds golden losses to those of `make_goldens.py`: the tiny Llama and its adapter are read, not drawn again.

Everything is computed in float64. Where a formula has a stop-gradient, the derivative is that of torch's `detach`.
"""

import json

import torch
from make_goldens import HERE, in_double, lora_parameters, numbers
from peft import PeftModel
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

NAME = "tiny-llama"
LOSSES = [
    ("truncated_importance_sampling", {"clip_high_threshold": 1.2}),
    ("masked_importance_sampling", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.3}),
    ("gspo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.02}),
    ("dro", {"beta": 0.3}),
]


def loss_of(name, config, lp, datum):
    q, a = (torch.tensor(datum[key], dtype=torch.float32).double() for key in ("logprobs", "advantages"))
    mask = torch.tensor(datum["mask"])
    ratio = torch.exp(lp - q)
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if name == "truncated_importance_sampling":
        return -(ratio.clamp(max=high).detach() * lp * a).sum()
    if name == "masked_importance_sampling":
        inside = (ratio >= low) & (ratio <= high)
        return -(torch.where(inside, ratio, 0.0).detach() * lp * a).sum()
    if name == "gspo":
        # The documentation of the Tinker API: the value of the sequence's ratio, the gradient of the token's logprob.
        sequence = (lp.detach() - q)[mask].mean()
        ratio = torch.exp(sequence + lp - lp.detach())
        return -torch.minimum(ratio * a, ratio.clamp(low, high) * a).sum()
    if name == "dro":
        return -(lp * a - 0.5 * config["beta"] * (lp - q) ** 2)[mask].sum()
    raise ValueError(name)


def main():
    base = LlamaForCausalLM.from_pretrained(HERE / NAME, dtype=torch.float32)
    in_double(base)
    model = PeftModel.from_pretrained(base, HERE / f"{NAME}-adapter", is_trainable=True).double()
    parameters = lora_parameters(model)
    data = json.loads((HERE / f"{NAME}-training.json").read_text())["data"]
    for datum in data:
        del datum["weights"]
        datum["mask"] = [q != 0.0 for q in datum["logprobs"]]
    # A sampled token without an advantage.
    first = data[0]["mask"].index(True)
    data[0]["advantages"][first] = 0.0
    out = {"data": data, "losses": {}}
    gradients = {}
    for loss, config in LOSSES:
        model.zero_grad()
        total, sequences = 0.0, []
        for datum in data:
            logits = model(torch.tensor([datum["input"]])).logits[0]
            lp = torch.log_softmax(logits, -1).gather(1, torch.tensor(datum["targets"])[:, None])[:, 0]
            total = total + loss_of(loss, config, lp, datum)
            q = torch.tensor(datum["logprobs"], dtype=torch.float32).double()
            sequences.append(float(torch.exp((lp.detach() - q)[torch.tensor(datum["mask"])].mean())))
        total.backward()
        print(loss, float(total.detach()), "ratios of the sequences", sequences)
        out["losses"][loss] = {"config": config, "sum": float(total.detach())}
        for key, parameter in parameters.items():
            # The first layer is enough: its gradient has passed through everything.
            if ".layers.0." in key:
                gradients[f"{loss}/{key}"] = parameter.grad.float().contiguous()
    file = HERE / f"{NAME}-loss-gradients.safetensors"
    save_file(gradients, file)
    file.chmod(0o644)
    text = json.dumps(out, separators=(",", ":"))
    (HERE / f"{NAME}-losses.json").write_text(text.replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
