"""What model-aware rewards are given: the policy that plays the rollout, its tokenizer, and adapters to train aside.

The objects answer to the names of the Tinker SDK, in its blocking and its awaited form, and carry its types where the
environment has imported it. All of them stand for the rollout in which they are used, so one object may be kept by an
environment and used by many rollouts at a time. Copies of them are themselves: user code copies what it is given.
"""

import asyncio
import functools

from . import sdk


class Reply:
    """An answer under way: `.result()`, `.result_async()`, or await it."""

    def __init__(self, future, convert=lambda value: value):
        self._future, self._convert = future, convert

    def result(self, timeout=None):
        return self._convert(self._future.result(timeout))

    async def result_async(self, timeout=None):
        return self._convert(await asyncio.wait_for(asyncio.wrap_future(self._future), timeout))

    def __await__(self):
        return self.result_async().__await__()


class Shared:
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


class Tokenizer(Shared):
    def __init__(self, wire, facts):
        self._wire = wire
        self.eos_token_id, self.bos_token_id, self.vocab_size = facts["eos"], facts["bos"], facts["vocab"]
        self.name_or_path = facts["base_model"]
        self._encode = functools.lru_cache(4096)(self._ask_encode)
        self._decode = functools.lru_cache(4096)(self._ask_decode)

    def _ask_encode(self, text, special):
        return tuple(self._wire.ask("encode", text=text, special=special).result())

    def _ask_decode(self, tokens):
        return self._wire.ask("decode", tokens=list(tokens)).result()

    def encode(self, text, add_special_tokens=True, **_):
        return list(self._encode(text, bool(add_special_tokens)))

    def decode(self, tokens, **_):
        tokens = [tokens] if isinstance(tokens, int) else tokens
        return self._decode(tuple(int(token) for token in tokens))

    def batch_decode(self, rows, **_):
        return [self.decode(row) for row in rows]

    def apply_chat_template(self, conversation, tokenize=True, **_):
        tokens = self._wire.ask("render", messages=[dict(m) for m in conversation]).result()
        return tokens if tokenize else self.decode(tokens)

    def __call__(self, text, add_special_tokens=True, **_):
        if not isinstance(text, str):
            return {"input_ids": [self.encode(one, add_special_tokens) for one in text]}
        tokens = self.encode(text, add_special_tokens)
        return {"input_ids": tokens, "attention_mask": [1] * len(tokens)}

    def __len__(self):
        return self.vocab_size


class Renderer(Shared):
    def __init__(self, wire, facts, tokenizer):
        self._wire, self._stop, self.tokenizer = wire, facts["stop"], tokenizer

    def build_generation_prompt(self, messages, **_):
        tokens = self._wire.ask("render", messages=[dict(m) for m in messages]).result()
        return sdk.model_input(tokens)

    def get_stop_sequences(self):
        return list(self._stop)

    def parse_response(self, tokens):
        found = self._wire.ask("parse", tokens=[int(token) for token in tokens]).result()
        return {"role": "assistant", "content": found["text"]}, found["complete"]


class Sampler(Shared):
    """The weights that play the rollout, or others by their handle."""

    def __init__(self, wire, facts, tokenizer, handle=None):
        self._wire, self._facts, self._handle = wire, facts, handle
        self.tokenizer, self.base_model = tokenizer, facts["base_model"]

    def get_tokenizer(self):
        return self.tokenizer

    def get_base_model(self):
        return self.base_model

    def _tokens(self, prompt):
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return sdk.ints(prompt)

    def sample(
        self,
        prompt,
        num_samples=1,
        sampling_params=None,
        include_prompt_logprobs=False,
        topk_prompt_logprobs=0,
        topk_sample_logprobs=0,
        **_,
    ):
        future = self._wire.ask(
            "sample",
            tokens=self._tokens(prompt),
            n=int(num_samples),
            draw=sdk.draw(sampling_params),
            prompt_logprobs=bool(include_prompt_logprobs),
            topk_prompt=int(topk_prompt_logprobs),
            topk_sample=int(topk_sample_logprobs),
            sampler=self._handle,
        )
        return Reply(future, sdk.sample_response)

    sample_async = sample

    def compute_logprobs(self, prompt, **_):
        return Reply(self._wire.ask("logprobs", tokens=self._tokens(prompt), sampler=self._handle))

    compute_logprobs_async = compute_logprobs


class Training(Shared):
    """An adapter of the run's own for trying things out; the one in training cannot be had. Lent until the rollout ends."""

    def __init__(self, wire, facts, tokenizer):
        self._wire, self._facts, self._tokenizer = wire, facts, tokenizer

    def get_tokenizer(self):
        return self._tokenizer

    def _pass(self, backward, data, loss_fn):
        future = self._wire.ask("shadow_pass", backward=backward, loss=loss_fn, data=[sdk.datum(d) for d in data])
        return Reply(future, sdk.forward_output)

    def forward(self, data, loss_fn="cross_entropy", *_, **__):
        return self._pass(False, data, loss_fn)

    def forward_backward(self, data, loss_fn="cross_entropy", *_, **__):
        return self._pass(True, data, loss_fn)

    def optim_step(self, adam_params, **_):
        return Reply(self._wire.ask("shadow_step", adam=sdk.adam(adam_params)), sdk.optim_output)

    def save_weights_and_get_sampling_client(self, name=None, **_):
        return self._sampler(self._wire.ask("shadow_export").result())

    def _sampler(self, handle):
        return Sampler(self._wire, self._facts, self._tokenizer, handle)

    async def forward_async(self, data, loss_fn="cross_entropy", *_, **__):
        return self.forward(data, loss_fn)

    async def forward_backward_async(self, data, loss_fn="cross_entropy", *_, **__):
        return self.forward_backward(data, loss_fn)

    async def optim_step_async(self, adam_params, **_):
        return self.optim_step(adam_params)

    async def save_weights_and_get_sampling_client_async(self, name=None, **_):
        return self._sampler(await self._wire.asked("shadow_export"))


class Service(Shared):
    """Lends adapters; every rollout may borrow one, and the run has only a few."""

    def __init__(self, wire, facts, tokenizer, sampler):
        self._wire, self._facts, self._tokenizer, self._sampler = wire, facts, tokenizer, sampler

    def create_lora_training_client(self, base_model=None, rank=None, **_):
        self._wire.ask("shadow_open").result()
        return Training(self._wire, self._facts, self._tokenizer)

    async def create_lora_training_client_async(self, base_model=None, rank=None, **_):
        await self._wire.asked("shadow_open")
        return Training(self._wire, self._facts, self._tokenizer)

    def create_sampling_client(self, **_):
        return self._sampler

    async def create_sampling_client_async(self, **_):
        return self._sampler


class Clients:
    """All of them, over one wire."""

    def __init__(self, wire, facts):
        self.tokenizer = Tokenizer(wire, facts)
        self.renderer = Renderer(wire, facts, self.tokenizer)
        self.sampler = Sampler(wire, facts, self.tokenizer)
        self.service = Service(wire, facts, self.tokenizer, self.sampler)
        self.base_model = facts["base_model"]

    def named(self):
        """What a `build` function may ask for, by the name of its parameter."""
        return {
            "sampling_client": self.sampler,
            "service_client": self.service,
            "tokenizer": self.tokenizer,
            "renderer": self.renderer,
            "base_model": self.base_model,
            # The adapter in training is nobody's to touch.
            "training_client": None,
        }
