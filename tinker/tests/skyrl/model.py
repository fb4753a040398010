"""Writes a random Qwen3 of 107 thousand parameters with a tokenizer of bytes into a folder: `model.py FOLDER`."""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 2, 4, 2, 16


def tokenizer():
    """One token per byte: no merges, so nothing has to be trained."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: number for number, text in enumerate(CONTROL + alphabet)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    return made


def weights(vocab):
    random = np.random.default_rng(0)

    def matrix(outputs, inputs):
        return (random.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)

    made = {
        "model.embed_tokens.weight": random.standard_normal((vocab, HIDDEN)).astype(np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(vocab, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        norms = {
            "input_layernorm": HIDDEN,
            "post_attention_layernorm": HIDDEN,
            "self_attn.q_norm": HEAD_DIM,
            "self_attn.k_norm": HEAD_DIM,
        }
        made |= {f"model.layers.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        made |= {f"model.layers.{layer}.{name}.weight": np.ones(size, np.float32) for name, size in norms.items()}
    return made


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    vocab, end = made.get_vocab_size(), made.token_to_id("<|im_end|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": end,
        "pad_token_id": 0,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
    }
    made.save(str(folder / "tokenizer.json"))
    for name, content in [("tokenizer_config", settings), ("config", config)]:
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    save_file(weights(vocab), str(folder / "model.safetensors"), metadata={"format": "pt"})


main(pathlib.Path(sys.argv[1]))
