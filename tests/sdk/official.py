"""Drives a server with the unmodified official SDK; prints one line per check, fails at the first that does not hold.

    TINKER_BASE_URL=http://… TINKER_API_KEY=tml-… python official.py MODEL

Prompts are token ids: the SDK's own way to a tokenizer leads over a model hub.
"""

import importlib.metadata
import importlib.util
import math
import sys
import time
import warnings

import tinker
from tinker import types

# Newer SDKs deprecate the forms that older ones only have.
warnings.filterwarnings("ignore", category=FutureWarning)

MODEL = sys.argv[1]
# Older SDKs refuse the names of losses that they do not know.
NEWER = hasattr(types, "PromptProvenanceSpan")
ADAM = types.AdamParams(learning_rate=1e-2)


def check(what, holds, *seen):
    if not holds:
        raise SystemExit(f"FAILED {what}: {seen}")
    print(f"ok {what}", flush=True)


def tensor(values, dtype):
    return types.TensorData(data=values, dtype=dtype, shape=[len(values)])


def prompt(tokens):
    return types.ModelInput.from_ints(tokens=list(tokens))


def datum(tokens, **floats):
    inputs = {name: tensor(values, "float32") for name, values in floats.items()}
    inputs["target_tokens"] = tensor(list(tokens[1:]), "int64")
    return types.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs=inputs)


def texts():
    return [datum(text, weights=[1.0] * (len(text) - 1)) for text in (b"hello world", b"good morning")]


def close(a, b, tolerance=1e-4):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b))


def logprobs(output, index=0):
    return list(output.loss_fn_outputs[index]["logprobs"].data)


def step(client, data, loss, **config):
    pass_, step_ = client.forward_backward(data, loss, **config), client.optim_step(ADAM)
    metrics = pass_.result().metrics
    step_.result()
    return metrics["loss:sum"]


service = tinker.ServiceClient()
models = [m.model_name for m in service.get_server_capabilities().supported_models]
check("the server names its model", models == [MODEL], models)

client = service.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
info = client.get_info()
check("the model describes itself", (info.model_data.model_name, info.lora_rank) == (MODEL, 8), info)

losses = [step(client, texts(), "cross_entropy") for _ in range(5)]
check("cross-entropy falls at every step", all(b < a for a, b in zip(losses, losses[1:])), losses)

sampler = client.save_weights_and_get_sampling_client(name="now")
params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5, stop=[])
answer = sampler.sample(prompt=prompt(b"hello"), num_samples=4, sampling_params=params).result()
check("four samples of six tokens", [len(s.tokens) for s in answer.sequences] == [6] * 4)
check("samples differ", len({tuple(s.tokens) for s in answer.sequences}) == 4)
check("logprobs of samples are logprobs", all(lp <= 0 for s in answer.sequences for lp in s.logprobs))
again = sampler.sample(prompt=prompt(b"hello"), num_samples=4, sampling_params=params).result()
check("a seed repeats", [s.tokens for s in again.sequences] == [s.tokens for s in answer.sequences])
stop = types.SamplingParams(max_tokens=6, seed=5, stop=[answer.sequences[0].tokens[2]])
stopped = sampler.sample(prompt=prompt(b"hello"), num_samples=1, sampling_params=stop).result().sequences[0]
check("a stop token ends and stays", (str(stopped.stop_reason), stopped.tokens[-1]) == ("stop", stop.stop[0]), stopped)

scores = sampler.compute_logprobs(prompt(b"hello world")).result()
forward = client.forward(texts(), "cross_entropy").result()
check("the first token has no logprob", scores[0] is None)
check("compute_logprobs agrees with forward", close(scores[1:], logprobs(forward)), scores, logprobs(forward))
trained = client.forward_backward(texts(), "cross_entropy").result()
check("forward_backward agrees with forward", close(logprobs(trained, 1), logprobs(forward, 1)))
client.optim_step(types.AdamParams(learning_rate=0.0)).result()

topk = sampler.sample(
    prompt=prompt(b"hello"),
    num_samples=1,
    sampling_params=types.SamplingParams(max_tokens=1),
    include_prompt_logprobs=True,
    topk_prompt_logprobs=3,
).result()
lists = topk.topk_prompt_logprobs
check("top-k lists for all but the first", lists[0] is None and [len(x) for x in lists[1:]] == [3] * 4, lists)
check("the best stand first", all(x[0][1] >= x[1][1] >= x[2][1] for x in lists[1:]), lists)
best = dict((token, lp) for token, lp in lists[1])
if ord("e") in best:
    check("top-k agrees with the prompt's logprob", abs(best[ord("e")] - topk.prompt_logprobs[1]) < 1e-5)

sampled = answer.sequences[0]
rollout = list(b"hello") + list(sampled.tokens)
pad = [0.0] * 4
for loss, config in [
    ("importance_sampling", None),
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    ("dro", {"beta": 0.05}),
    ("gspo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    ("truncated_importance_sampling", {"clip_high_threshold": 2.0}),
    ("masked_importance_sampling", {"clip_low_threshold": 0.5, "clip_high_threshold": 5.0}),
]:
    if not NEWER and loss not in ("importance_sampling", "ppo", "cispo", "dro"):
        continue
    fresh = service.create_lora_training_client(base_model=MODEL, rank=4, seed=2)
    q = fresh.save_weights_and_get_sampling_client(name="q").compute_logprobs(prompt(rollout)).result()
    mask = {"sequence_ratio_mask": pad + [1.0] * 6} if loss == "gspo" else {}
    data = [datum(rollout, logprobs=pad + list(q[5:]), advantages=pad + [1.0] * 6, **mask)]
    settings = {"loss_fn_config": config} if config else {}
    first = step(fresh, data, loss, **settings)
    # On-policy every ratio is 1: the loss is -sum(A), or -sum(lp A) where the ratio is a constant weight.
    expected = -6.0 if loss in ("importance_sampling", "ppo", "gspo") else -sum(q[5:])
    check(f"{loss} on policy has the loss of its definition", abs(first - expected) < 1e-3, first, expected)
    after = logprobs(fresh.forward(data, loss, **settings).result())[4:]
    check(f"a step along {loss} makes what was good more likely", sum(after) > sum(q[5:]), after, q)


def newer():
    """What SDKs since 0.38 send."""
    text = prompt(b"hello world, hello world, hello world, hello world")
    plain = types.SamplingParams(max_tokens=3, temperature=0.0, stop=[])

    def ask(**extras):
        return sampler.sample(prompt=text, num_samples=1, sampling_params=plain, **extras).result()

    whole = ask(include_prompt_logprobs=True)
    last = ask(include_prompt_logprobs=True, prompt_logprobs_last_n=4)
    check("the last tokens alone are scored", last.prompt_logprobs[:-4] == [None] * (text.length - 4))
    check("as in the whole prompt", last.prompt_logprobs[-4:] == whole.prompt_logprobs[-4:])
    check("from the prefix cache", 0 < last.prompt_cache_hit_tokens < text.length, last.prompt_cache_hit_tokens)
    top = ask(topk_sample_logprobs=3).sequences[0]
    check("the likeliest tokens of a greedy sample lead its lists", [x[0][0] for x in top.topk_logprobs] == top.tokens)
    check("with their logprobs", close([x[0][1] for x in top.topk_logprobs], top.logprobs, 1e-6))
    tokens = list(text.to_ints())
    rows = [[tokens[i + 1], -1] for i in range(text.length - 1)]
    wanted = types.TensorData(data=[cell for row in rows for cell in row], dtype="int64", shape=[len(rows), 2])
    targets = ask(target_prompt_logprobs=wanted).target_prompt_logprobs
    check("targets have the shape of the request", list(targets.shape) == [len(rows), 2], targets.shape)
    check("and the logprobs of the prompt", close(list(targets.data)[::2], whole.prompt_logprobs[1:], 1e-6))
    check("cells of -1 are 0", set(list(targets.data)[1::2]) == {0.0})

    recording = client.save_weights_and_get_sampling_client(record_stability_info=True)
    answer = recording.sample(prompt=prompt(b"hello"), num_samples=2, sampling_params=params).result()
    ids = [sequence.sequence_id for sequence in answer.sequences]
    check("recorded samples have names of their own", len(set(ids)) == 2 and all(ids), ids)
    sequence, count = answer.sequences[0], len(answer.sequences[0].tokens)
    named = datum(
        list(b"hello") + list(sequence.tokens),
        logprobs=pad + list(sequence.logprobs),
        advantages=pad + [1.0] * count,
    ).with_provenance(
        [
            types.PromptProvenanceSpan(sequence_id=ids[0], length=5),
            types.SampledProvenanceSpan(sequence_id=ids[0], length=count - 1),
        ],
        [
            types.PromptProvenanceSpan(sequence_id=ids[0], offset=1, length=4),
            types.SampledProvenanceSpan(sequence_id=ids[0], length=count),
        ],
    )
    value = client.forward([named], "ppo").result().metrics["loss:sum"]
    check("data with provenance are read by other losses", abs(value + count) < 1e-3, value)

    flight = client.save_weights_and_get_sampling_client(kind="inflight")
    before = flight.compute_logprobs(prompt(b"hello")).result()[1:]
    step(client, texts(), "cross_entropy")
    later = client.save_weights_and_get_sampling_client(kind="inflight")
    after = later.compute_logprobs(prompt(b"hello")).result()[1:]
    check("an in-flight sampler has the newest weights", flight.compute_logprobs(prompt(b"hello")).result()[1:] == after)
    check("which are others", after != before)

    # A fast machine may have sampled before the first weights are published.
    swapped = any(swapped_sample(client, flight) for _ in range(8))
    check("weights are swapped while a sample runs", swapped)


def swapped_sample(client, flight):
    """Whether weights were swapped while a sample ran. With `serve --kv recompute`, every token has the logprob that a
    fresh pass gives it under one of the published versions, in their order."""
    versions = [client.save_weights_and_get_sampling_client()]
    running = flight.sample(prompt(b"hello"), 16, types.SamplingParams(max_tokens=1500, stop=[], seed=1))
    for _ in range(4):
        step(client, texts(), "cross_entropy")
        client.save_weights_and_get_sampling_client(kind="inflight")
        versions.append(client.save_weights_and_get_sampling_client())
    sampled = running.result().sequences[0]
    text = prompt(list(b"hello") + list(sampled.tokens))
    fresh = [version.compute_logprobs(text).result()[5:] for version in versions]
    used, left = 0, list(sampled.logprobs)
    while used < len(fresh) and left:
        scores = fresh[used][-len(left) :]
        left = left[next((i for i, one in enumerate(left) if one != scores[i]), len(left)) :]
        used += 1
    check("a sample in flight is drawn by the published versions in their order", len(sampled.tokens) == 1500 and not left)
    return used > 1


    # Token 257 is spelled so; the model's own stops, 256 and 258, hold beside stop strings.
    def until(stop):
        settings = types.SamplingParams(max_tokens=64, seed=3, stop=stop)
        return sampler.sample(prompt=prompt(b"hello"), num_samples=24, sampling_params=settings).result().sequences

    by_name = until(["<|im_start|>"])
    by_id = until([256, 257, 258])
    check("a stop string that names a control token stops at it", [s.tokens for s in by_name] == [s.tokens for s in by_id])
    check("which some samples do", any(s.tokens[-1] == 257 for s in by_name), by_name)


def custom_losses():
    """Losses of the caller's own: the SDK differentiates them with torch and sends the gradients, traced or not."""
    import torch

    def by_hand(data, logprobs):
        inputs = [d.loss_fn_inputs for d in data]
        terms = [-(torch.exp(lp - i["logprobs"].to_torch()) * i["advantages"].to_torch()).sum() for lp, i in zip(logprobs, inputs)]
        return sum(terms), {"data": float(len(terms))}

    def traced(logprobs, advantages):
        # No `logprobs` of the samples: the name is that of the first argument. On policy, the ratio is 1.
        loss = -(torch.exp(logprobs - logprobs.detach()) * advantages).sum()
        return loss, {"custom/advantage:mean": advantages.mean()}

    handle = service.create_custom_loss(traced, input_ranks={"logprobs": 1, "advantages": 1}).result()
    check("a traced loss stays with the client", handle.loss_id is None)

    def trained(train):
        fresh = service.create_lora_training_client(base_model=MODEL, rank=4, seed=2)
        q = fresh.save_weights_and_get_sampling_client(name="q").compute_logprobs(prompt(rollout)).result()
        data = [datum(rollout, logprobs=pad + list(q[5:]), advantages=pad + [1.0, -2.0, 0.5, 1.0, 3.0, -1.0])]
        pass_ = train(fresh, data)
        step_ = fresh.optim_step(ADAM)
        metrics = pass_.result().metrics
        step_.result()
        return metrics, logprobs(fresh.forward(data, "importance_sampling").result())

    reference, expected = trained(lambda client, data: client.forward_backward(data, "importance_sampling"))
    for name, loss in [("custom", by_hand), ("traced", handle)]:
        metrics, after = trained(lambda client, data: client.forward_backward_custom(data, loss))
        check(f"a {name} loss has the value of the server's own", abs(metrics["loss:sum"] - reference["loss:sum"]) < 1e-4, metrics)
        check(f"and a step along a {name} loss goes to the same place", close(after, expected), after, expected)


if NEWER:
    newer()
if NEWER and importlib.util.find_spec("torch"):
    custom_losses()
elif NEWER:
    print("skipped custom losses: torch is not installed")

negative = [datum(b"hello world", weights=[-0.5] * 10)]
value = client.forward(negative, "cross_entropy").result()
expected = 0.5 * sum(logprobs(value))
check("negative weights count", abs(value.metrics["loss:sum"] - expected) < 1e-3, value.metrics, expected)

name = f"state-{time.time_ns()}"
path = client.save_state(name).result().path
check("a state has a path", path.endswith(f"/weights/{name}"), path)
original = [step(client, texts(), "cross_entropy") for _ in range(3)]
client.load_state_with_optimizer(path).result()
check("a loaded state goes on identically", [step(client, texts(), "cross_entropy") for _ in range(3)] == original)
if hasattr(service, "create_training_client_from_state_with_optimizer"):
    copy = service.create_training_client_from_state_with_optimizer(path)
    check("so does a new client", [step(copy, texts(), "cross_entropy") for _ in range(3)] == original)
weights = client.save_weights_for_sampler(f"{name}-sampler").result().path
reopened = service.create_sampling_client(model_path=weights)
here = client.save_weights_and_get_sampling_client(name="here").compute_logprobs(prompt(b"hello")).result()
check("saved sampler weights are the model's", reopened.compute_logprobs(prompt(b"hello")).result()[1:] == here[1:])
base = service.create_sampling_client(base_model=MODEL)
check("the base model is another", base.compute_logprobs(prompt(b"hello")).result()[1:] != here[1:])

rest = service.create_rest_client()
listed = [c.tinker_path for c in rest.list_checkpoints(path.split("/")[2]).result().checkpoints]
check("checkpoints are listed", {path, weights} <= set(listed), listed)
rest.delete_checkpoint_from_tinker_path(weights).result()
listed = [c.tinker_path for c in rest.list_checkpoints(path.split("/")[2]).result().checkpoints]
check("and deleted", weights not in listed and path in listed, listed)


def fails(what, word, ask):
    begun = time.monotonic()
    try:
        ask()
    except Exception as error:  # the SDK has many classes; what counts is that it is raised and says why
        check(f"{what} is refused with the reason", word in str(error), type(error), error)
        check(f"{what} is refused at once", time.monotonic() - begun < 10)
        return
    raise SystemExit(f"FAILED {what} was accepted")


fails("a token outside", "vocabulary", lambda: client.forward([datum([1, 2, 999999], weights=[1.0, 1.0])], "cross_entropy").result())
if NEWER:
    # Older SDKs refuse it themselves, after they have numbered the request, so that the server would wait for it.
    fails("an unknown loss", "nonsense", lambda: client.forward_backward(negative, "nonsense").result())
    fails("a custom loss", "forward_backward_custom", lambda: client.forward_backward(negative, "custom").result())
    stable = "stable_reinforce"
    fails("a loss of the hosted service", "hosted service", lambda: client.forward_backward(data, stable).result())
fails("a taken name", "taken", lambda: client.save_state(name).result())
fails("a missing state", "no weights", lambda: client.load_state("tinker://nobody/weights/nothing").result())
fails("no samples", "num_samples", lambda: base.sample(prompt=prompt(b"a"), num_samples=0, sampling_params=params).result())
fails("another base model", "it serves", lambda: service.create_lora_training_client(base_model="someone/else").get_info())
after = client.forward(texts(), "cross_entropy").result().metrics["loss:sum"]
check("refusals leave the model alone and its order unbroken", math.isfinite(after))
if hasattr(service, "close"):
    service.close("success")
print("done", importlib.metadata.version("tinker"), flush=True)
