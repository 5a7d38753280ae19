#!/usr/bin/env python3
"""node: timers, a forked child that answers messages, a worker thread, an HTTP server with connections that stay open and
one whose answer comes in pieces.

Variants: `unix` and `tcp` have the client inside the tree, `outside` has it outside, by TCP.
"""
import hashlib
import json
import os
import subprocess
import threading
import zlib

from app import Failure, connect, expect, find, install, main, report_answers, report_round, stopping

CONNECTIONS = 6
PORT = 46383
SERVER = r"""
const http = require('http'), crypto = require('crypto'), zlib = require('zlib');
const { fork } = require('child_process');
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (process.argv[2] === 'child') {
  let asked = 0;
  process.on('message', text => process.send({ text: text.toUpperCase(), asked: ++asked }));
} else if (!isMainThread) {
  parentPort.on('message', text => parentPort.postMessage(crypto.createHash('sha256').update(text).digest('hex')));
} else {
  const child = fork(__filename, ['child']), worker = new Worker(__filename), kept = new Map();
  const waiting = { child: [], worker: [] };
  child.on('message', answer => waiting.child.shift()(answer));
  worker.on('message', answer => waiting.worker.shift()(answer));
  const ask = (whom, send, text) => new Promise(done => { waiting[whom].push(done); send(text); });
  let ticks = 0, early = 0, last = process.hrtime.bigint();
  setInterval(() => {
    const now = process.hrtime.bigint();
    if (now - last < 18000000n) ++early;
    last = now; ++ticks;
  }, 20);
  const server = http.createServer(async (request, response) => {
    const [, what, text] = request.url.split('/');
    if (what === 'child') response.end(JSON.stringify(await ask('child', t => child.send(t), text)));
    else if (what === 'worker') response.end(await ask('worker', t => worker.postMessage(t), text));
    else if (what === 'keep') { kept.set(text, crypto.createHash('md5').update(text).digest('hex')); response.end(String(kept.size)); }
    else if (what === 'kept') response.end(kept.get(text) || 'none');
    else if (what === 'later') setTimeout(() => response.end('later ' + text), 30);
    else if (what === 'zip') zlib.deflate(text.repeat(2000), (error, data) => response.end(data));
    else if (what === 'ticks') response.end(JSON.stringify({ ticks, early }));
    else if (what === 'pieces') {
      let piece = 0;
      const timer = setInterval(() => {
        if (piece == Number(text)) { clearInterval(timer); response.end(); } else response.write(`piece ${piece++}\n`);
      }, 10);
    } else { server.close(); child.disconnect(); worker.terminate(); response.end('bye', () => setTimeout(() => process.exit(0), 50)); }
  });
  server.keepAliveTimeout = 600000; server.requestTimeout = 0; server.headersTimeout = 0;
  const where = process.argv[2];
  if (/^\d+$/.test(where)) server.listen(Number(where), '127.0.0.1'); else server.listen(where);
}
"""


def command(variant):
    return [find("node"), "server.js", "node.sock" if variant == "unix" else str(PORT)]


class Connection:
    def __init__(self, variant):
        self.socket = connect("node.sock" if variant == "unix" else PORT)
        self.stream = self.socket.makefile("rb")

    def ask(self, path):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    def head(self):
        status = self.stream.readline()
        if b" 200 " not in status:
            raise Failure(f"node answers {status!r}")
        fields = {}
        while (line := self.stream.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            fields[name.lower()] = value.strip()
        return fields

    def chunk(self):
        data = self.stream.read(int(self.stream.readline(), 16))
        self.stream.readline()
        return data

    def answer(self):
        fields = self.head()
        if "content-length" in fields:
            return self.stream.read(int(fields["content-length"]))
        parts = []
        while part := self.chunk():
            parts.append(part)
        return b"".join(parts)

    def call(self, path):
        self.ask(path)
        return self.answer()


class Pieces(threading.Thread):
    """One answer that is under way all the time."""

    COUNT = 400

    def __init__(self, variant):
        super().__init__(daemon=True)
        self.connection, self.text = Connection(variant), None
        self.start()

    def run(self):
        self.text = self.connection.call(f"/pieces/{self.COUNT}")


def one_round(number, connections):
    expect(connections[0].call(f"/keep/word{number}"), str(number).encode(), "how much node has kept")
    paths = [f"/child/text{number}", f"/worker/text{number}", f"/kept/word{number // 2}", f"/later/{number}", f"/zip/{number}."]
    for connection, path in zip(connections[1:], paths):
        connection.ask(path)
    found = [connection.answer() for connection in connections[1:]]
    expect(json.loads(found[0]), {"text": f"TEXT{number}", "asked": number}, "the child's answer")
    expect(found[1].decode(), hashlib.sha256(f"text{number}".encode()).hexdigest(), "the worker's answer")
    expect(found[2].decode(), hashlib.md5(f"word{number // 2}".encode()).hexdigest() if number > 1 else "none", "what was kept")
    expect(found[3], f"later {number}".encode(), "an answer after a time")
    expect(zlib.decompress(found[4]), f"{number}.".encode() * 2000, "what was compressed")


def drive(variant):
    server = None
    if variant != "outside":
        with open("node.log", "ab") as log:
            server = subprocess.Popen(command(variant), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    connections, pieces, number = [Connection(variant) for _ in range(CONNECTIONS)], Pieces(variant), 0
    before = json.loads(connections[0].call("/ticks"))["ticks"]
    while not stopping() or pieces.is_alive():
        number += 1
        one_round(number, connections)
        print("alive" if pieces.is_alive() else "done")
        report_round(number)
    expect(pieces.text, b"".join(b"piece %d\n" % i for i in range(Pieces.COUNT)), "the answer in pieces")
    timers = json.loads(connections[0].call("/ticks"))
    expect(timers["ticks"] > before + 50, True, f"the interval goes on ({timers})")
    expect(connections[0].call("/end"), b"bye", "the end")
    if server is not None:
        expect(server.wait(20), 0, "the exit status of node")
    report_answers({"rounds": number})


def test(run):
    install(node="nodejs")
    with open(os.path.join(run.folder, "server.js"), "w", encoding="ascii") as script:
        script.write(SERVER)
    flags = [] if run.variant == "unix" else ["--tcp-established"]
    if run.variant == "outside":
        tree = run.start("node", command(run.variant))
        driver = run.start_driver()
    else:
        tree = driver = run.start_driver()
    driver.wait_rounds(15)
    tree.checkpoint(*flags, between=lambda: driver.wait_rounds(10))
    expect(driver.said(r"^(alive|done)$").group(1), "alive", "the answer in pieces was under way")
    driver.wait_rounds(30)
    expect(driver.answers()["rounds"] >= 55, True, "the rounds")
    tree.wait_end()
    expect(tree.ending, 0, "the exit status of the tree")


if __name__ == "__main__":
    main(test, drive, variants=("unix", "tcp", "outside"))
