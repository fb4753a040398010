"""verifiers with a rollout that asks the policy over and over, by the simplest client there is: for measuring the endpoint."""

import http.client
import json
import socket
import time
import urllib.parse

import verifiers as vf
from datasets import Dataset

CALLS = 400


class Called(vf.SingleTurnEnv):
    async def rollout(self, input, client, model, sampling_args=None):
        state = await super().rollout(input, client, model, sampling_args)
        address = client.client.base_url
        connection = http.client.HTTPConnection(address.host, address.port)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = urllib.parse.urljoin(address.path, "chat/completions")
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Go on."}]})
        headers = {"Authorization": f"Bearer {client.client.api_key}", "Content-Type": "application/json"}
        begun = time.perf_counter()
        for _ in range(CALLS):
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        state["seconds"] = (time.perf_counter() - begun) / CALLS
        return state


def seconds(state, **_):
    return state["seconds"]


def load_environment():
    dataset = Dataset.from_list([{"question": "Go on.", "answer": ""}])
    return Called(dataset=dataset, rubric=vf.Rubric(funcs=[seconds]))
