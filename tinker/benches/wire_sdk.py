"""The official SDK's half of `wire.rs`: the same batch, encoded and decoded. Prints the best seconds of each."""

import sys
import time

from tinker.lib.public_interfaces import training_client  # noqa: F401  (loads the package as a program does)
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output
from tinker.types import Datum, EncodedTextChunk, ForwardBackwardInput, ForwardBackwardRequest, ModelInput, TensorData

data, length, rounds = (int(arg) for arg in sys.argv[1:4])
output = open(sys.argv[4], "rb").read()
tokens = [7 + i % 50_000 for i in range(length)]
floats = [-0.5 - (i % 13) / 7 for i in range(length)]


def datum():
    row = lambda values, dtype: TensorData(data=values, dtype=dtype, shape=[length])
    return Datum(
        model_input=ModelInput(chunks=[EncodedTextChunk(tokens=tokens)]),
        loss_fn_inputs={
            "target_tokens": row(tokens, "int64"),
            "logprobs": row(floats, "float32"),
            "advantages": row(floats, "float32"),
        },
    )


request = ForwardBackwardRequest(
    model_id="m",
    seq_id=1,
    forward_backward_input=ForwardBackwardInput(
        data=[datum() for _ in range(data)], loss_fn="importance_sampling"
    ),
)


def best(work):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begun)
    return min(times), result


encode, body = best(lambda: forward_backward_request_to_proto(request).SerializeToString())
decode, result = best(lambda: deserialize_forward_backward_output(output))
assert len(result.loss_fn_outputs) == data
print(encode, decode, len(body))
