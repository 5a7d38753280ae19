"""A network that is slow and loses connections: a proxy for TCP in front of a server of the tests.

By chance, from a seed: what passes is held up for milliseconds; a connection is closed as soon as it is there, falls silent for
a while, or is reset in the middle of what it carries, in either direction.
"""
import contextlib
import random
import socket
import struct
import threading
import time


class Proxy:
    def __init__(self, port, seed, delay=0.004, refuses=0.02, breaks=0.25, longest=6 << 20):
        self.there, self.delay, self.refuses, self.breaks, self.longest = ("127.0.0.1", port), delay, refuses, breaks, longest
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.broken = self.connections = 0

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def chance(self):
        with self.lock:
            return self.random.random()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    @staticmethod
    def reset(*ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def carry(self, client):
        try:
            if self.chance() < self.refuses:
                raise ConnectionError
            server = socket.create_connection(self.there, 5)
        except OSError:
            self.reset(client)
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(None)
        left = [self.longest * self.chance() if self.chance() < self.breaks else float("inf")]
        threads = [threading.Thread(target=self.pass_on, args=(*ends, left), daemon=True) for ends in ((client, server), (server, client))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close(), server.close()

    def pass_on(self, source, sink, left):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay * self.chance() + (0.3 if self.chance() < 0.002 else 0))
                left[0] -= len(data)
                if left[0] < 0:
                    self.broken += 1
                    sink.sendall(data[: len(data) // 2])
                    self.reset(source, sink)
                    return
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
