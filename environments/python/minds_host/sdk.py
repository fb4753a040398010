"""Between the Tinker SDK's values and plain ones. The SDK's own types are used where the environment has imported them;
where it is not installed, `install_stubs` lets `import tinker` succeed with these."""

import importlib.util
import sys
import types

from .plain import field


class Fields:
    """A value with named fields."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


class ModelInput(Fields):
    def __init__(self, tokens=(), chunks=None):
        super().__init__(tokens=list(tokens))
        for chunk in chunks or ():
            self.tokens.extend(chunk.tokens)

    @classmethod
    def from_ints(cls, tokens):
        return cls(tokens)

    @classmethod
    def empty(cls):
        return cls()

    def to_ints(self):
        return list(self.tokens)

    @property
    def length(self):
        return len(self.tokens)


class TensorData(Fields):
    def __init__(self, data, dtype="float32", shape=None):
        super().__init__(data=list(data), dtype=dtype, shape=shape)

    @classmethod
    def from_numpy(cls, array):
        return cls(array.tolist(), str(array.dtype), list(array.shape))

    from_torch = from_numpy

    def to_numpy(self):
        import numpy

        return numpy.asarray(self.data, dtype=self.dtype)

    def tolist(self):
        return list(self.data)


class Datum(Fields):
    pass


class AdamParams(Fields):
    pass


class SamplingParams(Fields):
    pass


class EncodedTextChunk(Fields):
    pass


class SampledSequence(Fields):
    pass


class SampleResponse(Fields):
    pass


class StepResult(Fields):
    pass


class Env:
    """The base class of environments that speak tokens."""


def _is_installed(name):
    """A bare folder of that name, of which Python makes an empty package, is not what is meant."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def install_stubs():
    """Lets environments import what they only need the names of."""
    if not _is_installed("tinker"):
        tinker = types.ModuleType("tinker")
        for kind in (ModelInput, TensorData, Datum, AdamParams, SamplingParams, EncodedTextChunk, SampledSequence, SampleResponse):
            setattr(tinker, kind.__name__, kind)
        tinker.types = tinker
        sys.modules.update({"tinker": tinker, "tinker.types": tinker})
    if not _is_installed("tinker_cookbook"):
        cookbook, rl, rl_types = (types.ModuleType(n) for n in ("tinker_cookbook", "tinker_cookbook.rl", "tinker_cookbook.rl.types"))
        cookbook.rl, rl.types = rl, rl_types
        rl_types.Env, rl_types.StepResult = Env, StepResult
        sys.modules.update({module.__name__: module for module in (cookbook, rl, rl_types)})


def _types():
    tinker = sys.modules.get("tinker")
    return getattr(tinker, "types", tinker)


def _make(name, fallback, **fields):
    """The SDK's own type where it takes these fields; versions differ."""
    kind = getattr(_types(), name, None) or fallback
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        return fallback(**fields)


def model_input(tokens):
    kind = getattr(_types(), "ModelInput", None) or ModelInput
    return kind.from_ints(list(tokens))


def is_model_input(value):
    return hasattr(value, "to_ints")


def ints(value):
    """Tokens of a ModelInput, a tensor or a list."""
    found = [int(token) for token in (value.to_ints() if hasattr(value, "to_ints") else numbers(value))]
    if found and not 0 <= min(found) <= max(found) < 1 << 32:
        raise ValueError(f"token ids lie between {min(found)} and {max(found)}, they must be whole numbers of 32 bits")
    return found


def numbers(value):
    """Numbers of a TensorData, an array or a list."""
    value = field(value, "data", value) if not hasattr(value, "tolist") else value
    return value.tolist() if hasattr(value, "tolist") else list(value)


def draw(params):
    """How to sample; what is not set is left to the run. An empty `stop` is no stop."""
    found = {}
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed"):
        value = field(params, name) if params is not None else None
        if value is not None:
            found[name] = float(value) if name in ("temperature", "top_p") else whole(name, value)
    if found.get("top_k", 0) < 1:
        found.pop("top_k", None)
    stop = field(params, "stop") if params is not None else None
    if stop is not None:
        found["stop"] = _stops(stop)
    return found


def whole(name, value):
    if int(value) != value or (value < 0 and name != "top_k") or value >= 1 << 64:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of 64 bits and not negative")
    return int(value)


def _stops(stop):
    stops = [stop] if isinstance(stop, (str, int)) else list(stop)
    if not (all(isinstance(one, str) for one in stops) or all(isinstance(one, int) for one in stops)):
        raise ValueError(f"stop is {stop!r}; it must be texts or token ids, and not both")
    return stops


def sample_response(value):
    sequences = []
    for found in value["sequences"]:
        sequence = _make(
            "SampledSequence", SampledSequence, tokens=found["tokens"], logprobs=found["logprobs"], stop_reason=found["stop"]
        )
        sequences.append(sequence)
    response = _make("SampleResponse", SampleResponse, sequences=sequences, prompt_logprobs=value["prompt_logprobs"])
    _attach(response, "topk_prompt_logprobs", value["topk_prompt_logprobs"])
    for sequence, found in zip(sequences, value["sequences"]):
        _attach(sequence, "top_logprobs", found["topk"])
    return response


def _attach(target, name, value):
    if value is not None:
        # The SDK's types are closed; what they have no field for is still there to be asked.
        object.__setattr__(target, name, value)


def datum(value):
    """Input, targets and the weights of cross_entropy."""
    inputs = field(value, "loss_fn_inputs")
    tokens = ints(field(value, "model_input"))
    targets = ints(inputs["target_tokens"])
    weights = inputs.get("weights")
    weights = [1.0] * len(targets) if weights is None else [float(w) for w in numbers(weights)]
    return {"input": tokens, "targets": targets, "weights": weights}


def adam(params):
    names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
    return {name: float(field(params, name)) for name in names if field(params, name) is not None}


def forward_output(value):
    rows = [{"logprobs": TensorData(row, "float32", [len(row)])} for row in value["logprobs"]]
    return Fields(loss_fn_outputs=rows, metrics=value["metrics"])


def optim_output(value):
    return Fields(metrics=value["metrics"])
