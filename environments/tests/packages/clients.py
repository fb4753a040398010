"""A reward that does what the answer says with the clients that it was given."""

import tinker


class Clients:
    def __init__(self, service, sampler, tokenizer, stop):
        self.service, self.sampler, self.tokenizer, self.stop = service, sampler, tokenizer, stop

    def initial_observation(self):
        return tinker.ModelInput.from_ints(self.tokenizer.encode("What?")), self.stop

    async def step(self, action):
        word, _, rest = self.tokenizer.decode(action).partition(" ")
        return {"reward": await getattr(self, word)(rest)}

    async def _said_by(self, client):
        return self.tokenizer.decode((await client.sample_async([1, 2, 3])).sequences[0].tokens)

    async def base(self, _):
        client = self.service.create_sampling_client(base_model=self.tokenizer.name_or_path)
        return float(await self._said_by(client) == "I am the base model")

    async def saved(self, path):
        client = await self.service.create_sampling_client_async(model_path=path)
        return float(await self._said_by(client) == f"I am {path}")

    async def likely(self, path):
        client = self.service.create_sampling_client(model_path=path)
        logprobs = await client.compute_logprobs_async([1, 2, 3])
        return logprobs[1] + logprobs[2]

    async def other(self, model):
        return await self._said_by(self.service.create_sampling_client(base_model=model))

    async def both(self, _):
        self.service.create_sampling_client(model_path="tinker://x", base_model=self.tokenizer.name_or_path)

    async def truncated(self, _):
        self.tokenizer.encode("x", truncation=True, max_length=1)

    async def templated(self, _):
        self.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tools=[{}])

    async def unknown(self, _):
        self.sampler.compute_logprobs([1, 2], include_prompt=True)

    async def half(self, _):
        await self.service.create_lora_training_client_async(train_mlp=False)

    async def seeded(self, seed):
        seed = "".join(filter(str.isdigit, seed))  # an end that was given as a token is part of the answer
        await self.sampler.sample_async([1, 2, 3], sampling_params={"seed": int(seed), "stop": []})
        return 1.0

    async def nan(self, _):
        await self.sampler.sample_async([1, 2, 3], sampling_params={"temperature": float("nan")})

    async def half_a_pair(self, _):
        return float(self.tokenizer.decode(self.tokenizer.encode("\ud83dx")) == "?x")

    async def big(self, _):
        await self.sampler.sample_async([1, 2, 3], sampling_params={"seed": 2**64})

    async def big_token(self, _):
        self.tokenizer.decode([1, 2**32])

    async def negative(self, _):
        await self.sampler.sample_async([1, 2, 3], num_samples=-1)

    async def data(self, _):
        self.tokenizer.encode(b"bytes")

    async def strange_messages(self, _):
        message = {"role": "user", "content": "x", "seen": {b"bytes": 2**70, (1, 2): float("inf")}}
        return float(self.tokenizer.apply_chat_template([message]) == self.tokenizer.apply_chat_template([{"role": "user", "content": "x"}]))

    async def mixed(self, _):
        await self.sampler.sample_async([1, 2, 3], sampling_params={"stop": [1, "x"]})


class Builder:
    def __init__(self, stop):
        self.stop = stop

    def build(self, sampling_client, service_client, tokenizer):
        return Clients(service_client, sampling_client, tokenizer, self.stop)


def load_environment(stop=None):
    return Builder(stop)
