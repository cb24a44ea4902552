"""A bad network: a TCP proxy that delays all that passes it, and cuts every connection in time.

    python tests/slow_proxy.py 192.0.2.2:9092 192.0.2.1:9092 --delay 0.1 --cut 30

It listens on the first address and passes on to the second. A chunk leaves `delay` seconds after it
came, without holding up those behind it, so the delay is no throttle. A connection that is `cut`
seconds old is aborted at both ends, and what was under way on it is lost.
"""

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator


class SlowProxy:
    """Passes connections on from one address to another, slowly and not for long."""

    def __init__(
        self,
        listen: tuple[str, int],
        to: tuple[str, int],
        delay: float,
        cut: float,
        most: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Cut `most` connections at most, so that a slow machine gets through in the end."""
        self._listen, self._to, self._delay, self._cut = listen, to, delay, cut
        self._most, self._say = most, say
        self.port = 0
        self.cuts: list[int] = []  # of every connection that was cut: the bytes under way on it

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connect, *self._listen)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until one end closes it or its time is over."""
        ways, writers = list[_Way](), [writer]
        enough = self._most is not None and len(self.cuts) >= self._most
        limit = asyncio.timeout(None if enough else self._cut)
        try:
            async with limit:
                far_reader, far_writer = await asyncio.open_connection(*self._to)
                writers.append(far_writer)
                ways += [_Way(reader, far_writer), _Way(far_reader, writer)]
                await self._pass(ways)
        except OSError:  # also TimeoutError
            if limit.expired():
                self.cuts.append(sum(way.waiting for way in ways))
                self._say(f"cut {self.cuts[-1]}")
        finally:
            for each in writers:
                each.transport.abort()

    async def _pass(self, ways: list["_Way"]) -> None:
        """Pass on in both directions until both have ended, or one end is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                for way in ways:
                    group.create_task(way.read(self._delay))
                    group.create_task(way.write())
        except* OSError:
            pass


class _Way:
    """One direction of a connection, with the chunks that are under way in it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.waiting = 0  # bytes

    async def read(self, delay: float) -> None:
        """Note when each chunk has to leave; an empty one is the end."""
        chunk = b"?"
        while chunk:
            chunk = await self._reader.read(2**16)
            self.waiting += len(chunk)
            self._chunks.put_nowait((asyncio.get_running_loop().time() + delay, chunk))

    async def write(self) -> None:
        """Let each chunk leave when it is due."""
        while True:
            due, chunk = await self._chunks.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if not chunk:
                self._writer.write_eof()
                return
            self._writer.write(chunk)
            await self._writer.drain()
            self.waiting -= len(chunk)


@contextlib.contextmanager
def slow_proxy(
    to: str, delay: float, cut: float, most: int | None = None
) -> Iterator[tuple[str, SlowProxy]]:
    """Run a proxy on 127.0.0.1 in a thread; yield its address and itself."""
    proxy = SlowProxy(("127.0.0.1", 0), parse(to), delay, cut, most)
    started, stop = threading.Event(), list[Callable[[], None]]()

    async def serve() -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.create_task(proxy.serve(started.set))
        stop.append(lambda: loop.call_soon_threadsafe(serving.cancel))
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10.0), "the proxy did not start"
    try:
        yield f"127.0.0.1:{proxy.port}", proxy
    finally:
        stop[0]()
        thread.join(10.0)


def parse(address: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def main() -> None:
    """Serve until killed; print a line for every connection that is cut."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("to", help="HOST:PORT")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds each way")
    parser.add_argument("--cut", type=float, default=30.0, help="seconds from the opening")
    options = parser.parse_args()
    proxy = SlowProxy(
        parse(options.listen),
        parse(options.to),
        options.delay,
        options.cut,
        say=lambda line: print(line, flush=True),
    )
    asyncio.run(proxy.serve(lambda: print("ready", flush=True)))


if __name__ == "__main__":
    main()
