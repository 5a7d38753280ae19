#!/usr/bin/env python3
"""nginx, a master and two workers of another user: keep-alive connections that ask on and on, one more that a slow
download occupies, a reload of the configuration afterwards.

Variants: `unix` and `tcp` have the client inside the tree, `outside` has it outside, by TCP.
"""
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import threading

from app import Failure, connect, expect, find, install, main, report_answers, report_round, stopping, wait_until

CONNECTIONS, FILES = 8, 20
PORT = 46380
BIG_MIB, RATE_MIB = 40, 4
CONFIGURATION = """
worker_processes 2;
daemon off;
user nobody nogroup;
pid nginx.pid;
error_log error.log notice;
events {{ worker_connections 64; }}
http {{
  access_log access.log;
  client_body_temp_path temp_body;
  proxy_temp_path temp_proxy;
  fastcgi_temp_path temp_fastcgi;
  uwsgi_temp_path temp_uwsgi;
  scgi_temp_path temp_scgi;
  keepalive_requests 1000000;
  keepalive_timeout 600s;
  send_timeout 600s;
  limit_req_zone $uri zone=counted:1m rate=100000r/s;
  server {{
    listen {listen};
    root files;
    location /counted/ {{ limit_req zone=counted burst=1000 nodelay; alias files/; }}
    location /big {{ limit_rate {rate}m; }}
    location /version {{ return 200 "{version}"; }}
  }}
}}
"""


def content_of(number):
    return (b"file %d " % number) * (10 + number * number * 40)


def big_block(number):
    return hashlib.sha512(b"block %d" % number).digest() * 1024  # 64 KiB


def write_configuration(variant, version):
    listen = f"unix:{os.getcwd()}/nginx.sock" if variant == "unix" else f"127.0.0.1:{PORT}"
    text = CONFIGURATION.format(listen=listen, rate=RATE_MIB, version=version)
    pathlib.Path("nginx.conf").write_text(text.replace("files", f"{os.getcwd()}/files"), encoding="ascii")


def write_files(variant):
    write_configuration(variant, "first")
    os.mkdir("files")
    for number in range(FILES):
        pathlib.Path(f"files/{number}").write_bytes(content_of(number))
    with open("files/big", "wb") as big:
        for number in range(BIG_MIB * 16):
            big.write(big_block(number))


def command():
    return [find("nginx"), "-p", f"{os.getcwd()}/", "-c", "nginx.conf", "-e", "error.log"]


class Connection:
    def __init__(self, variant):
        self.socket = connect("nginx.sock" if variant == "unix" else PORT)
        self.stream = self.socket.makefile("rb")

    def ask(self, path):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    def length(self):
        status = self.stream.readline()
        if b" 200 " not in status:
            raise Failure(f"nginx answers {status!r}")
        size = None
        while (line := self.stream.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
            if line.lower().startswith(b"connection: close"):
                raise Failure("nginx does not keep the connection")
        return size

    def answer(self):
        return self.stream.read(self.length())


class Download(threading.Thread):
    def __init__(self, variant):
        super().__init__(daemon=True)
        self.connection, self.wrong, self.blocks = Connection(variant), None, 0
        self.start()

    def run(self):
        try:
            self.connection.ask("/big")
            expect(self.connection.length(), BIG_MIB << 20, "the size of the download")
            while self.blocks < BIG_MIB * 16:
                expect(self.connection.stream.read(65536) == big_block(self.blocks), True, f"block {self.blocks}")
                self.blocks += 1
        except (Failure, OSError) as failure:
            self.wrong = failure


def drive(variant):
    server = None
    if variant != "outside":
        write_files(variant)
        with open("nginx.log", "ab") as log:
            server = subprocess.Popen(command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    download = Download(variant)
    connections = [Connection(variant) for _ in range(CONNECTIONS)]
    number = asked = 0
    while not stopping() or download.is_alive():
        number += 1
        for place, connection in enumerate(connections):
            connection.ask(f"/{'counted/' if place % 2 else ''}{(number + place) % FILES}")
        for place, connection in enumerate(connections):
            expect(connection.answer() == content_of((number + place) % FILES), True, f"the file of connection {place}")
        asked += CONNECTIONS
        print("blocks", download.blocks)
        report_round(number)
    if download.wrong is not None:
        raise download.wrong
    expect(download.blocks, BIG_MIB * 16, "the blocks of the download")
    master = int(pathlib.Path("nginx.pid").read_text(encoding="ascii"))
    write_configuration(variant, "second")
    os.kill(master, signal.SIGHUP)

    def reloaded():
        try:
            fresh = Connection(variant)
            fresh.ask("/version")
            return fresh.answer() == b"second"
        except (Failure, OSError):  # the old worker took it, and closes what it has
            return False
    wait_until(reloaded, "nginx does not take the new configuration", 20, 0.1)
    os.kill(master, signal.SIGQUIT)
    if server is not None:
        expect(server.wait(20), 0, "the exit status of nginx")
    wait_until(lambda: not os.path.exists("nginx.pid"), "nginx does not end", 20, 0.05)
    lines = [re.search(r'"GET (\S+) .*?" (\d+) ', line) for line in open("access.log", encoding="ascii")]
    small = [line for line in lines if line.group(1) not in ("/version", "/big")]
    expect({line.group(2) for line in lines}, {"200"}, "the statuses in the access log")
    expect(len(small), asked, "the lines of the access log")
    report_answers({"asked": asked})


def test(run):
    install(nginx="nginx-light")
    flags = [] if run.variant == "unix" else ["--tcp-established"]
    if run.variant == "outside":
        os.chdir(run.folder)
        write_files(run.variant)
        tree = run.start("nginx", command())
        driver = run.start_driver()
    else:
        tree = driver = run.start_driver()

    def blocks():
        found = driver.said(r"^blocks (\d+)$")
        return int(found.group(1)) if found else 0
    driver.wait_for(lambda: blocks() > 16, "downloaded 1 MiB")
    tree.checkpoint(*flags, between=lambda: driver.wait_rounds(20))
    expect(blocks() < BIG_MIB * 16, True, "the download was in flight")
    driver.wait_rounds(100)
    answers = driver.answers()
    expect(answers["asked"] > 100 * CONNECTIONS, True, "the number of answers")
    tree.wait_end()
    expect(tree.ending, 0, "the exit status of the tree")


if __name__ == "__main__":
    main(test, drive, variants=("unix", "tcp", "outside"))
