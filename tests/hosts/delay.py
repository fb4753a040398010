"""Forwards TCP connections, each byte after a delay: `delay.py LISTEN_PORT TARGET_PORT SECONDS`."""

import asyncio
import sys
import time

listen, target, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


async def forward(reader, writer):
    """Keeps the order of the bytes, and any number of them under way."""
    queue = asyncio.Queue(maxsize=4096)

    async def read():
        while data := await reader.read(65536):
            await queue.put((time.monotonic() + delay, data))
        await queue.put((0.0, b""))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, data = await queue.get()
            if not data:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        reading.cancel()
        writer.close()


async def connect(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(forward(reader, back), forward(there, writer), return_exceptions=True)


async def main():
    server = await asyncio.start_server(connect, "0.0.0.0", listen)
    await server.serve_forever()


asyncio.run(main())
