"""What model-aware rewards are given: the policy that plays the rollout, its tokenizer, and adapters to train aside.

The objects answer to the names of the Tinker SDK, in its blocking and its awaited form, and carry its types where the
environment has imported it. All of them stand for the rollout in which they are used, so one object may be kept by an
environment and used by many rollouts at a time. Copies of them are themselves: user code copies what it is given.

An argument that cannot be done is refused by its name, or is no parameter here at all; none is passed over. What only
says how an SDK waits or asks again (`retry_config`) has no meaning here, where waiting is the run's.
"""

import asyncio
import functools
import warnings

from . import sdk
from .plain import plain


def refuse(call, usual, **given):
    """Refuses arguments that are not as `usual`."""
    for name, value in given.items():
        if value is not usual and value != usual:
            raise NotImplementedError(f"{call}({name}={value!r}) is not offered in an environment: leave {name} out")


class PendingReply:
    """An answer under way: `.result()`, `.result_async()`, or await it."""

    def __init__(self, future, convert=lambda value: value):
        self._future, self._convert = future, convert

    def result(self, timeout=None):
        return self._convert(self._future.result(timeout))

    async def result_async(self, timeout=None):
        return self._convert(await asyncio.wait_for(asyncio.wrap_future(self._future), timeout))

    def __await__(self):
        return self.result_async().__await__()


class NeverCopied:
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


class Tokenizer(NeverCopied):
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

    def encode(self, text, add_special_tokens=True, truncation=False, padding=False, max_length=None, return_tensors=None):
        refuse("encode", False, truncation=truncation, padding=padding)
        refuse("encode", None, max_length=max_length, return_tensors=return_tensors)
        return list(self._encode(text, bool(add_special_tokens)))

    def decode(self, tokens, skip_special_tokens=True, clean_up_tokenization_spaces=None):
        """Control tokens are left out."""
        refuse("decode", True, skip_special_tokens=skip_special_tokens)
        refuse("decode", None, clean_up_tokenization_spaces=clean_up_tokenization_spaces or None)
        tokens = [tokens] if isinstance(tokens, int) else tokens
        return self._decode(tuple(sdk.ints(tokens)))

    def batch_decode(self, rows, **options):
        return [self.decode(row, **options) for row in rows]

    def apply_chat_template(
        self,
        conversation,
        tools=None,
        chat_template=None,
        add_generation_prompt=True,
        continue_final_message=False,
        tokenize=True,
        return_tensors=None,
        return_dict=False,
    ):
        """The prompt of the run's renderer, which ends where the assistant's answer begins."""
        call = "apply_chat_template"
        refuse(call, None, tools=tools, chat_template=chat_template, return_tensors=return_tensors)
        refuse(call, True, add_generation_prompt=add_generation_prompt)
        refuse(call, False, continue_final_message=continue_final_message, return_dict=return_dict)
        tokens = self._wire.ask("render", messages=[plain(dict(m)) for m in conversation]).result()
        return tokens if tokenize else self.decode(tokens)

    def __call__(self, text, add_special_tokens=True, truncation=False, padding=False, max_length=None, return_tensors=None):
        refuse("tokenizer", False, truncation=truncation, padding=padding)
        refuse("tokenizer", None, max_length=max_length, return_tensors=return_tensors)
        if not isinstance(text, str):
            return {"input_ids": [self.encode(one, add_special_tokens) for one in text]}
        tokens = self.encode(text, add_special_tokens)
        return {"input_ids": tokens, "attention_mask": [1] * len(tokens)}

    def __len__(self):
        return self.vocab_size


class Renderer(NeverCopied):
    def __init__(self, wire, facts, tokenizer):
        self._wire, self._stop, self.tokenizer = wire, facts["stop"], tokenizer

    def build_generation_prompt(self, messages, role="assistant", prefill=None):
        refuse("build_generation_prompt", "assistant", role=role)
        tokens = self._wire.ask("render", messages=[plain(dict(m)) for m in messages]).result()
        if prefill:
            tokens = tokens + self.tokenizer.encode(prefill, add_special_tokens=False)
        return sdk.model_input(tokens)

    def get_stop_sequences(self):
        return list(self._stop)

    def parse_response(self, tokens):
        found = self._wire.ask("parse", tokens=sdk.ints(tokens)).result()
        return {"role": "assistant", "content": found["text"]}, found["complete"]


class Sampler(NeverCopied):
    """The weights that play the rollout, or others.

    Others are `{"exported": handle}`, `"base"` or `{"saved": path}`, and are looked for when they are first asked.
    """

    def __init__(self, wire, facts, tokenizer, weights="policy"):
        self._wire, self._facts, self._weights = wire, facts, weights
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
    ):
        future = self._wire.ask(
            "sample",
            tokens=self._tokens(prompt),
            n=sdk.whole("num_samples", int(num_samples)),
            draw=sdk.draw(sampling_params),
            prompt_logprobs=bool(include_prompt_logprobs),
            topk_prompt=sdk.whole("topk_prompt_logprobs", int(topk_prompt_logprobs)),
            topk_sample=sdk.whole("topk_sample_logprobs", int(topk_sample_logprobs)),
            weights=self._weights,
        )
        return PendingReply(future, sdk.sample_response)

    sample_async = sample

    def compute_logprobs(self, prompt):
        return PendingReply(self._wire.ask("logprobs", tokens=self._tokens(prompt), weights=self._weights))

    compute_logprobs_async = compute_logprobs


class Training(NeverCopied):
    """An adapter of the run's own for trying things out; the one in training cannot be had. Lent until the rollout ends."""

    def __init__(self, wire, facts, tokenizer):
        self._wire, self._facts, self._tokenizer = wire, facts, tokenizer

    def get_tokenizer(self):
        return self._tokenizer

    def _pass(self, backward, data, loss_fn, loss_fn_config):
        refuse("forward_backward" if backward else "forward", None, loss_fn_config=loss_fn_config)
        future = self._wire.ask("shadow_pass", backward=backward, loss=loss_fn, data=[sdk.datum(d) for d in data])
        return PendingReply(future, sdk.forward_output)

    def forward(self, data, loss_fn="cross_entropy", loss_fn_config=None):
        return self._pass(False, data, loss_fn, loss_fn_config)

    def forward_backward(self, data, loss_fn="cross_entropy", loss_fn_config=None):
        return self._pass(True, data, loss_fn, loss_fn_config)

    def optim_step(self, adam_params):
        return PendingReply(self._wire.ask("shadow_step", adam=sdk.adam(adam_params)), sdk.optim_output)

    def save_weights_and_get_sampling_client(self, name=None, retry_config=None):
        """Nothing is kept under the name: the weights live as long as the rollout."""
        return self._sampler(self._wire.ask("shadow_export").result())

    def _sampler(self, handle):
        return Sampler(self._wire, self._facts, self._tokenizer, {"exported": handle})

    async def forward_async(self, data, loss_fn="cross_entropy", loss_fn_config=None):
        return self.forward(data, loss_fn, loss_fn_config)

    async def forward_backward_async(self, data, loss_fn="cross_entropy", loss_fn_config=None):
        return self.forward_backward(data, loss_fn, loss_fn_config)

    async def optim_step_async(self, adam_params):
        return self.optim_step(adam_params)

    async def save_weights_and_get_sampling_client_async(self, name=None, retry_config=None):
        return self._sampler(await self._wire.asked("shadow_export"))


class Service(NeverCopied):
    """Lends adapters; every rollout may borrow one, and the run has only a few."""

    def __init__(self, wire, facts, tokenizer, sampler):
        self._wire, self._facts, self._tokenizer, self._sampler = wire, facts, tokenizer, sampler

    def create_lora_training_client(self, base_model=None, rank=None, **shape):
        self._check_adapter(base_model, rank, **shape)
        self._wire.ask("shadow_open").result()
        return Training(self._wire, self._facts, self._tokenizer)

    async def create_lora_training_client_async(self, base_model=None, rank=None, **shape):
        self._check_adapter(base_model, rank, **shape)
        await self._wire.asked("shadow_open")
        return Training(self._wire, self._facts, self._tokenizer)

    def _check_adapter(
        self, base_model, rank, seed=None, train_mlp=True, train_attn=True, train_unembed=True, user_metadata=None
    ):
        """The adapters of the pool are as the config says, and start from weights that are there: a seed has no effect."""
        call = "create_lora_training_client"
        self._check_model(call, base_model)
        refuse(call, True, train_mlp=train_mlp, train_attn=train_attn, train_unembed=train_unembed)
        if rank is not None:
            warnings.warn(f"{call}(rank={rank}): adapters have the rank that the config gives them in [shadow]", stacklevel=3)

    def _check_model(self, call, base_model):
        own = self._facts["base_model"]
        if base_model is not None and base_model != own:
            raise NotImplementedError(
                f"{call}(base_model={base_model!r}) is not offered in an environment: this run has {own!r} alone. Ask "
                "another model with a client of your own, whose key the config hands on with `pass_env`"
            )

    def create_sampling_client(self, model_path=None, base_model=None, retry_config=None):
        """Saved weights, the base model, or, with neither, the policy that samples the rollout."""
        if model_path is not None and base_model is not None:
            raise ValueError("create_sampling_client takes model_path or base_model, not both")
        if model_path is not None:
            return self._frozen({"saved": str(model_path)})
        if base_model is not None:
            self._check_model("create_sampling_client", base_model)
            return self._frozen("base")
        return self._sampler

    def _frozen(self, weights):
        return Sampler(self._wire, self._facts, self._tokenizer, weights)

    async def create_sampling_client_async(self, model_path=None, base_model=None, retry_config=None):
        return self.create_sampling_client(model_path, base_model, retry_config)


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
            # The adapter in training is not accessible.
            "training_client": None,
        }
