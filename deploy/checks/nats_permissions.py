"""What the users of nats.conf can and cannot do, against a real server: `nats_permissions.py NATS_SERVER`.

Needs the package nats-py. Makes the requests that a run and a worker make: a work queue, pull consumers, results,
questions, and objects in both directions.
"""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

CONFIG = pathlib.Path(__file__).resolve().parent.parent / "k8s" / "base"
PASSWORD = "long-and-random"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def connect(port: int, user: str, refused: list[str]):
    async def note(error: Exception) -> None:
        refused.append(str(error))

    return await nats.connect(
        f"nats://127.0.0.1:{port}", user=user, password=PASSWORD, error_cb=note, connect_timeout=5
    )


async def silent(_: Exception) -> None:
    """The caller sees the error too."""


async def can(port: int) -> None:
    refused: list[str] = []
    run = await connect(port, "run", refused)
    worker = await connect(port, "worker", refused)

    jobs = run.jetstream()
    await jobs.add_stream(
        StreamConfig(
            name="minds",
            subjects=["minds.job.>", "minds.result.>", "minds.dead.>"],
            retention=RetentionPolicy.WORK_QUEUE,
        )
    )
    for durable, subject in [("r1_ghost", "minds.job.r1.ghost.*"), ("r1__results", "minds.result.r1.*")]:
        await jobs.add_consumer("minds", ConsumerConfig(durable_name=durable, filter_subject=subject))
    await jobs.create_object_store("minds_r1")
    await jobs.publish("minds.job.r1.ghost.1", b"job")
    large = await jobs.object_store("minds_r1")
    await large.put("job", b"x" * 300_000)

    async def reply(message) -> None:
        await message.respond(b"answer")

    await run.subscribe("minds.ask.r1", cb=reply)
    announced = await worker.subscribe("minds.run.*")
    cancelled = await worker.subscribe("minds.cancel.r1")
    reported = await run.subscribe("minds.worker.r1")

    # A job, a question, an object in each direction, a result.
    of_worker = worker.jetstream()
    await of_worker.stream_info("minds")
    await of_worker.consumer_info("minds", "r1_ghost")
    pulled = await of_worker.pull_subscribe_bind("r1_ghost", "minds")
    [job] = await pulled.fetch(1, timeout=2)
    assert job.data == b"job"
    assert (await worker.request("minds.ask.r1", b"question", timeout=2)).data == b"answer"
    store = await of_worker.object_store("minds_r1")
    assert len((await store.get("job")).data) == 300_000
    await store.put("result", b"y" * 300_000)
    await of_worker.publish("minds.result.r1.1", b"result")
    await job.ack_sync(timeout=2)
    await worker.publish("minds.worker.r1", b"report")
    assert (await reported.next_msg(timeout=2)).data == b"report"
    await run.publish("minds.run.r1", b"announcement")
    await run.publish("minds.cancel.r1", b"cancellation")
    assert (await announced.next_msg(timeout=2)).data == b"announcement"
    assert (await cancelled.next_msg(timeout=2)).data == b"cancellation"

    results = await jobs.pull_subscribe_bind("r1__results", "minds")
    [result] = await results.fetch(1, timeout=2)
    assert result.data == b"result"
    await result.ack_sync(timeout=2)
    assert len((await large.get("result")).data) == 300_000
    assert not refused, refused
    print("allowed: jobs, results, questions, reports, objects in both directions")

    # What a worker must not do: each of these gets no answer, and the server reports a violation.
    forbidden = [
        "$JS.API.STREAM.CREATE.minds",
        "$JS.API.STREAM.UPDATE.minds",
        "$JS.API.STREAM.DELETE.minds",
        "$JS.API.STREAM.DELETE.OBJ_minds_r1",
        "$JS.API.STREAM.PURGE.minds",
        "$JS.API.STREAM.MSG.GET.minds",
        "$JS.API.STREAM.MSG.DELETE.minds",
        "$JS.API.CONSUMER.CREATE.minds",
        "$JS.API.CONSUMER.CREATE.minds.spy.minds.result.r1.*",
        "$JS.API.CONSUMER.DURABLE.CREATE.minds.spy",
        "$JS.API.CONSUMER.DELETE.minds.r1_ghost",
        "minds.job.r1.ghost.2",
        "minds.run.r1",
        "minds.cancel.r1",
    ]
    for subject in forbidden:
        refused.clear()
        await worker.publish(subject, b"{}", reply="_INBOX.none.1")
        await worker.flush()
        await asyncio.sleep(0.05)
        assert any("permissions violation" in error.lower() for error in refused), subject
    for subject in ["minds.result.>", "minds.job.>", "minds.dead.>", "minds.ask.>", ">"]:
        refused.clear()
        await worker.subscribe(subject)
        await worker.flush()
        await asyncio.sleep(0.05)
        assert any("permissions violation" in error.lower() for error in refused), subject
    print(f"refused to a worker: {len(forbidden)} publications, 5 subscriptions")

    refused.clear()
    await run.publish("$JS.API.STREAM.CREATE.OTHER", b"{}")
    await run.publish("other.subject", b"{}")
    await run.flush()
    await asyncio.sleep(0.05)
    assert any("other.subject" in error for error in refused), refused
    await run.close()
    await worker.close()
    try:
        await nats.connect(
            f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=2, error_cb=silent
        )
    except nats.errors.Error:
        print("refused: a connection without a user")
    else:
        raise AssertionError("a connection without a user was accepted")


def main(server: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        text = (CONFIG / "nats.conf").read_text()
        text = text.replace("listen: 0.0.0.0:4222", f"listen: 127.0.0.1:{port}")
        text = text.replace("http: 0.0.0.0:8222", "").replace("store_dir: /data", f"store_dir: {folder}/data")
        text = text.replace("pid_file: /tmp/nats.pid", "")
        config = pathlib.Path(folder) / "nats.conf"
        config.write_text(text)
        (config.parent / "cluster.conf").write_text((CONFIG / "cluster.conf").read_text())
        variables = {
            **os.environ,
            "NATS_SERVER_NAME": "minds-nats-0",
            "NATS_RUN_PASSWORD": PASSWORD,
            "NATS_WORKER_PASSWORD": PASSWORD,
        }
        process = subprocess.Popen([server, "--config", config], env=variables, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(wait_and_check(port))
        finally:
            process.terminate()
            process.wait()


async def wait_and_check(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    await asyncio.wait_for(can(port), 60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats-server")
