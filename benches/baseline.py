"""torch and llama.cpp on the shapes of `engine.rs`, one measure per line of standard input.

The first line of output says what is installed; then each measure named on standard input is answered by one line of
JSON with its parts in seconds, or with the reason why there is none. Weights are random: speed does not depend on them.
In torch's favour: the adapter counts as merged while it samples, and LoRA is plain modules without peft's bookkeeping.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers
from torch import nn
from torch.nn import functional as F

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

THREADS = min(2, os.cpu_count() or 1)
VOCAB, RANK, ALPHA = 49152, 8, 32.0
SEQUENCES, LENGTH = 4, 256
GROUP, PROMPT, NEW, MICRO_BATCH = 16, 200, 64, 4
CONTEXT, PASSES = 161, 78  # decoding; the mean context is PROMPT


class Lora(nn.Module):
    """A frozen linear layer with an adapter."""

    merged = False

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x):
        y = self.base(x)
        return y if Lora.merged else y + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


class Torch:
    """A decoder of SmolLM2-135M's shape."""

    def __init__(self):
        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
        self.model = transformers.LlamaForCausalLM(config).requires_grad_(False)
        for layer in self.model.model.layers:
            for parent in (layer.self_attn, layer.mlp):
                for name, child in list(parent.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(parent, name, Lora(child))
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.weights, lr=1e-4, betas=(0.9, 0.95), eps=1e-12)
        self.decode_cache = None

    def backward(self, tokens, trained, sampled):
        """Importance sampling on the last `trained` targets of every sequence."""
        hidden = self.model.model(tokens[:, :-1], use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[:, -trained:])
        logprobs = -F.cross_entropy(logits.flatten(0, 1), tokens[:, -trained:].flatten(), reduction="none")
        advantages = torch.ones(len(tokens), trained)
        advantages[1::2] = -1.0
        loss = -((logprobs - sampled.flatten()).exp() * advantages.flatten()).sum()
        loss.backward()

    def adam(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train(self):
        tokens = torch.randint(VOCAB, (SEQUENCES, LENGTH + 1))
        sampled = torch.full((SEQUENCES, LENGTH), -11.0)
        start = time.perf_counter()
        self.backward(tokens, LENGTH, sampled)
        self.adam()
        return [time.perf_counter() - start]

    @torch.inference_mode()
    def generate(self, cache, logits, steps):
        """Draws `steps` tokens at temperature 1, with their logprobs."""
        tokens, logprobs = [], []
        for step in range(steps):
            scores = logits.log_softmax(-1)
            tokens.append(torch.multinomial(scores.exp(), 1))
            logprobs.append(scores.gather(1, tokens[-1]))
            if step + 1 < steps:
                logits = self.model(tokens[-1], past_key_values=cache, use_cache=True).logits[:, -1]
        return torch.cat(tokens, 1), torch.cat(logprobs, 1)

    @torch.inference_mode()
    def prefill(self, prompts):
        cache = transformers.DynamicCache(config=self.model.config)
        out = self.model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache, out.logits[:, -1]

    def decode(self):
        Lora.merged = True
        if self.decode_cache is None:
            self.decode_cache = self.prefill(torch.randint(VOCAB, (GROUP, CONTEXT)))
        cache, logits = self.decode_cache
        start = time.perf_counter()
        self.generate(cache, logits, PASSES + 1)  # PASSES passes: the first token comes from the prefill
        seconds = time.perf_counter() - start
        cache.crop(-PASSES)
        Lora.merged = False
        return [seconds / PASSES]

    def step(self):
        Lora.merged = True
        prompt = torch.randint(VOCAB, (1, PROMPT))
        start = time.perf_counter()
        cache, logits = self.prefill(prompt)
        cache.batch_repeat_interleave(GROUP)
        answers, sampled = self.generate(cache, logits.expand(GROUP, -1), NEW)
        sample = time.perf_counter() - start
        Lora.merged = False
        # Tensors of inference mode must not enter a graph: copies may.
        tokens = torch.cat([prompt.expand(GROUP, -1), answers.clone()], 1)
        sampled = sampled.clone()
        start = time.perf_counter()
        for at in range(0, GROUP, MICRO_BATCH):
            part = slice(at, at + MICRO_BATCH)
            self.backward(tokens[part], NEW, sampled[part])
        self.adam()
        return [sample, time.perf_counter() - start]


class LlamaCpp:
    """llama.cpp on the model's own four-bit weights; nothing is drawn from its logits, in its favour."""

    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = GROUP * 256
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = GROUP
        params.n_threads = params.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            raise RuntimeError("llama.cpp did not load the model")
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        for sequence in range(GROUP):
            self.run([(self.token(sequence, i), i, sequence, False) for i in range(CONTEXT)])

    @staticmethod
    def token(sequence, position):
        return 17 + (sequence * 7919 + position * 104729) % (VOCAB - 17)

    def run(self, rows):
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if code := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def decode(self):
        start = time.perf_counter()
        for position in range(CONTEXT, CONTEXT + PASSES):
            self.run([(self.token(s, position), position, s, True) for s in range(GROUP)])
            llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        memory = llama_cpp.llama_get_memory(self.context)
        for sequence in range(GROUP):
            llama_cpp.llama_memory_seq_rm(memory, sequence, CONTEXT, -1)
        return [seconds / PASSES]


def main():
    gguf = sys.argv[1] if len(sys.argv) > 1 else ""
    # llama.cpp and transformers print; only answers may reach the reader.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    about = f"torch {torch.__version__}, transformers {transformers.__version__}, {THREADS} threads"
    answer({"about": about, "llama_cpp": llama_cpp and llama_cpp.__version__})
    torch_model, llama = Torch(), None
    for line in sys.stdin:
        name = line.strip()
        if not name.startswith("llama_"):
            answer({"parts": getattr(torch_model, name)()})
        elif llama_cpp is None:
            answer({"missing": "not installed"})
        elif Path(gguf).suffix != ".gguf":
            answer({"missing": "no GGUF file"})
        else:
            try:
                llama = llama or LlamaCpp(gguf)
                answer({"parts": llama.decode()})
            except Exception as error:  # another version's interface
                answer({"missing": f"failed: {error}"})


if __name__ == "__main__":
    main()
