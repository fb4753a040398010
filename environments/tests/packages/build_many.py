"""The third interface: `build` is given the sampler, and rewards ask it."""

import asyncio


class Likely:
    def __init__(self, client, target, way):
        self.client, self.target, self.way = client, target, way

    def initial_observation(self):
        return [{"role": "user", "content": f"Say something about {self.target}."}]

    async def step(self, action_text):
        prefix = self.client.tokenizer.encode(action_text, add_special_tokens=False)
        tokens = prefix + self.client.tokenizer.encode(self.target, add_special_tokens=False)
        if self.way == "awaited":
            logprobs = await self.client.compute_logprobs_async(tokens)
        elif self.way == "blocking":
            logprobs = self.client.compute_logprobs(tokens).result()
        else:
            response = await self.client.sample_async(tokens, num_samples=2, sampling_params={"max_tokens": 3, "temperature": 0.5})
            assert len(response.sequences) == 2
            text = self.client.get_tokenizer().decode(response.sequences[1].tokens)
            return {"reward": float(len(response.sequences[1].logprobs)), "metrics": {"spaces": text.count(" ")}}
        assert logprobs[0] is None and len(logprobs) == len(tokens)
        tail = logprobs[len(prefix):]
        return {"reward": sum(tail) / len(tail)}


class Asking(Likely):
    """Asks the policy already for what it shows."""

    async def initial_observation(self):
        logprobs = await self.client.compute_logprobs_async(self.client.tokenizer.encode(self.target))
        return f"Your logprob is {sum(logprobs[1:]):.2f}."


class Builder:
    def __init__(self, way):
        self.way = way

    async def build(self, sampling_client):
        await asyncio.sleep(0)
        kind = Asking if self.way == "asking" else Likely
        return [kind(sampling_client, target, self.way) for target in ("cats", "dogs", "rain")]


class Greedy:
    def build(self, client, **everything):
        names = {"service_client", "tokenizer", "renderer", "base_model", "training_client"}
        assert set(everything) == names and everything["training_client"] is None, everything
        return Likely(client, everything["base_model"], "blocking")


def load_environment(way="awaited"):
    return Greedy() if way == "everything" else Builder(way)
