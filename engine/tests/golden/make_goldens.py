"""Makes the golden files of this folder with torch, transformers, peft and gguf. README.md says how to run it.

Everything is seeded; nothing here is used at run time. Tiny models are computed in float64 throughout, so that a
golden is the truth and not another rounding; SmolLM2 in float32.
"""

import json
import math
import sys
import types
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SMALL = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)


def tiny_models():
    llama3 = dict(
        rope_type="llama3",
        rope_theta=10000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    yield "llama", LlamaForCausalLM(LlamaConfig(vocab_size=288, tie_word_embeddings=True, **SMALL))
    yield "llama3-rope", LlamaForCausalLM(
        LlamaConfig(vocab_size=160, tie_word_embeddings=False, rope_parameters=llama3, **SMALL)
    )
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(vocab_size=288, tie_word_embeddings=True, **SMALL))
    # Qwen3's head size is its own, not hidden_size / heads.
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(vocab_size=288, tie_word_embeddings=True, head_dim=24, **SMALL))


def randomise(model, seed):
    """Weights large enough that attention and biases matter; norms near 1 but not 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            parameter.data = 0.5 * noise
        else:
            parameter.data = 1.5 * noise / math.sqrt(parameter.shape[1])


def inverse_frequencies(config, dim):
    """transformers computes them in float32; this is the same in float64."""
    rope = config.rope_parameters
    inverse = rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rope["rope_type"] == "llama3":
        wavelength = 2 * math.pi / inverse
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / wavelength - low) / (high - low)
        smooth = smooth.clamp(0, 1)
        inverse = (1 - smooth) * inverse / rope["factor"] + smooth * inverse
    return inverse


def in_double(model):
    """Float64 without the casts to float32 that transformers keeps in norms and rotations."""
    model.double()

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].double() * self.exact
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    ids = torch.tensor([tokens(3, model.config.vocab_size, 90)])
    with torch.no_grad():
        before = model(ids).logits
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.exact = inverse_frequencies(model.config, 2 * module.inv_freq.numel())
            assert torch.allclose(module.exact, module.inv_freq.double(), rtol=1e-5, atol=0)
            module.forward = types.MethodType(rotary, module)
    with torch.no_grad():
        moved = float((model(ids).logits - before).abs().max())
    assert 0 < moved < 1e-4, moved
    return model


def numbers(tensor):
    """Shortest decimals that give back the same f32."""
    return [float(str(np.float32(v))) for v in tensor.detach().double().flatten().tolist()]


def tokens(seed, vocab, length):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (length,), generator=generator).tolist()


@torch.no_grad()
def greedy(model, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def next_logprobs(model, ids):
    logits = model(torch.tensor([ids])).logits[0].double()
    picked = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return logits, picked


def write(name, value):
    text = json.dumps(value, separators=(",", ":"))
    (HERE / name).write_text(text.replace('],"', '],\n"') + "\n")


def golden_tiny(name, model):
    model.float()
    folder = HERE / f"tiny-{name}"
    model.save_pretrained(folder)
    in_double(model)
    # 80 tokens pass llama3-rope's original context of 64.
    ids = tokens(1, model.config.vocab_size, 80)
    logits, picked = next_logprobs(model, ids)
    rows = [0, 7, len(ids) - 1]
    prompt = ids[:12]
    write(
        f"tiny-{name}.json",
        {
            "ids": ids,
            "logit_rows": {str(row): numbers(logits[row]) for row in rows},
            "next_logprobs": numbers(picked),
            "greedy": {"prompt": prompt, "tokens": greedy(model, prompt, 16)},
        },
    )


# --- training -------------------------------------------------------------------------------------------------


def adapter_for(model, rank, alpha, seed):
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=LINEARS, bias="none", lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            scale = 0.2 if "lora_A" in name else 0.02
            # Through f32, because that is what the files hold.
            parameter.data = (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)
    return wrapped


def short(name):
    """base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight -> the name in adapter_model."""
    return name.replace(".default.weight", ".weight")


def lora_parameters(wrapped):
    return {short(n): p for n, p in wrapped.named_parameters() if "lora_" in n}


def make_data(model, seed):
    """Three sequences of different lengths; ratios on both sides of every clip, some positions left out."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for index, length in enumerate([9, 14, 5]):
        ids = tokens(seed + 10 + index, model.config.vocab_size, length + 1)
        with torch.no_grad():
            _, picked = next_logprobs(model, ids)
        uniform = lambda: torch.rand(length, generator=generator)
        off = uniform() < 0.3
        advantages = torch.where(off, torch.zeros(length), 2 * uniform() - 1)
        weights = torch.where(off, torch.zeros(length), 1.5 * uniform() - 0.25)
        old = picked + 1.2 * (uniform() - 0.5)
        old = torch.where(off, torch.zeros(length, dtype=old.dtype), old)
        data.append(
            {
                "input": ids[:-1],
                "targets": ids[1:],
                "weights": numbers(weights),
                "logprobs": numbers(old),
                "advantages": numbers(advantages),
            }
        )
    return data


def loss_of(name, config, lp, datum):
    w, q, a = (torch.tensor(datum[k], dtype=torch.float32).to(lp.dtype) for k in ("weights", "logprobs", "advantages"))
    r = torch.exp(lp - q)
    lo, hi = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if name == "cross_entropy":
        return -(lp * w).sum()
    if name == "importance_sampling":
        return -(r * a).sum()
    if name == "ppo":
        return -torch.minimum(r * a, r.clamp(lo, hi) * a).sum()
    if name == "cispo":
        return -(r.clamp(lo, hi).detach() * lp * a).sum()
    raise ValueError(name)


LOSSES = [
    ("cross_entropy", {}),
    ("importance_sampling", {}),
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    ("cispo", {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}),
]


def golden_training(name, model):
    wrapped = adapter_for(model, rank=4, alpha=32, seed=77)
    folder = HERE / f"tiny-{name}-adapter"
    wrapped.save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    save_file({key: value.float() for key, value in load_file(file).items()}, file, metadata={"format": "pt"})
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tiny-{name}"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    parameters = lora_parameters(wrapped)
    assert sorted(parameters) == sorted(load_file(folder / "adapter_model.safetensors"))

    ids = tokens(2, model.config.vocab_size, 24)
    logits, picked = next_logprobs(wrapped, ids)
    data = make_data(wrapped, seed=5)
    out = {
        "ids": ids,
        "logit_rows": {str(row): numbers(logits[row]) for row in (0, 23)},
        "next_logprobs": numbers(picked),
        "data": data,
        "losses": {},
    }
    gradients = {}
    for loss, config in LOSSES:
        wrapped.zero_grad()
        total, logprobs = 0.0, []
        for datum in data:
            logits = wrapped(torch.tensor([datum["input"]])).logits[0]
            lp = torch.log_softmax(logits, -1).gather(1, torch.tensor(datum["targets"])[:, None])[:, 0]
            total = total + loss_of(loss, config, lp, datum)
            logprobs.append(numbers(lp))
        total.backward()
        out["losses"][loss] = {"config": config, "sum": float(total.detach()), "logprobs": logprobs}
        for key, parameter in parameters.items():
            gradients[f"{loss}/{key}"] = parameter.grad.float().contiguous()
    save_file(gradients, HERE / f"tiny-{name}-gradients.safetensors")
    write(f"tiny-{name}-training.json", out)
    return wrapped, parameters, gradients


def golden_adam(name, parameters, gradients):
    """Three AdamW steps; step n takes the scaled gradients of the n-th loss. The third is too small to be clipped."""
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    trained = {key: torch.nn.Parameter(p.detach().double().clone()) for key, p in parameters.items()}
    optimizer = torch.optim.AdamW(trained.values(), **settings)
    steps, scales, norms = ["cross_entropy", "importance_sampling", "ppo"], [1.0, 0.5, 1e-4], []
    saved = {}
    for number, (loss, scale) in enumerate(zip(steps, scales), 1):
        for key, parameter in trained.items():
            parameter.grad = scale * gradients[f"{loss}/{key}"].double()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), 0.5)))
        optimizer.step()
        if number in (1, 3):
            for key, parameter in trained.items():
                saved[f"step{number}/{key}"] = parameter.detach().float().contiguous()
    save_file(saved, HERE / f"tiny-{name}-adam.safetensors")
    write(
        f"tiny-{name}-adam.json",
        {
            "learning_rate": 1e-2,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "grad_clip_norm": 0.5,
            "gradients_of": steps,
            "gradients_times": scales,
            "norms_before_clipping": norms,
        },
    )


# --- SmolLM2 --------------------------------------------------------------------------------------------------


def unpermute(weight, heads):
    """llama.cpp stores rotary pairs side by side; transformers halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_gguf(path):
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(path)
    return reader, {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}


def smollm2(tensors):
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"]}
    names = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for layer in range(30):
        for ours, theirs in names.items():
            weight = tensors[f"blk.{layer}.{ours}.weight"]
            if ours == "attn_q":
                weight = unpermute(weight, 9)
            if ours == "attn_k":
                weight = unpermute(weight, 3)
            state[f"model.layers.{layer}.{theirs}.weight"] = weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    return model.eval()


PROMPTS = [
    "The capital of France is",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 12 + 7? Answer with just the number.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return ",
]


def golden_smollm2(path):
    from bpe import Bpe

    reader, tensors = read_gguf(path)
    bpe = Bpe.from_gguf(reader)
    model = smollm2(tensors)
    prompts = []
    for text in PROMPTS:
        ids = bpe.encode(text, control=True)
        logits, picked = next_logprobs(model, ids)
        top = torch.topk(logits[-1], 5)
        continuation = greedy(model, ids, 24)
        prompts.append(
            {
                "text": text,
                "ids": ids,
                "next_logprobs": numbers(picked),
                "top5": {"ids": top.indices.tolist(), "logits": numbers(top.values)},
                "greedy": continuation,
                "greedy_text": bpe.decode(continuation),
            }
        )
        print(repr(bpe.decode(continuation)))
    sums = {}
    for name in ["model.layers.0.self_attn.q_proj.weight", "model.layers.29.mlp.down_proj.weight", "model.embed_tokens.weight"]:
        tensor = model.state_dict()[name]
        sums[name] = {"sum": float(tensor.double().sum()), "first": numbers(tensor.flatten()[:8]), "row1": numbers(tensor[1, :4])}
    write("smollm2.json", {"prompts": prompts, "weights": sums})


def main():
    torch.set_num_threads(2)
    for seed, (name, model) in enumerate(tiny_models()):
        randomise(model, 100 + seed)
        model.eval()
        golden_tiny(name, model)
        if name in ("llama", "qwen3"):
            _, parameters, gradients = golden_training(name, model)
            golden_adam(name, parameters, gradients)
    if len(sys.argv) > 1:
        sys.path.insert(0, str(HERE))
        golden_smollm2(sys.argv[1])
        from bpe import golden_chat, golden_tokenizer

        models = HERE.parents[2] / "models" / "tests" / "golden"
        golden_tokenizer(sys.argv[1], models / "smollm2-tokens.json")
        golden_chat(sys.argv[1], models / "smollm2-chat.json")
    for path in HERE.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
