#!/usr/bin/env python3
"""migrate over a real ssh: an sshd of the test's own on the loopback, with its own keys and configuration."""
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import become_subreaper, state_of, wait_until
from migrate_peer import Peer
from prompt import CKPT, main

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")

CONFIG = """ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
        return connection.recv(4) == b"SSH-"
    return False


@contextlib.contextmanager
def ssh_server():
    """Yields the words of --ssh."""
    folder, port = os.getcwd(), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], check=True)
    with open("config", "w", encoding="ascii") as config:
        config.write(CONFIG.format(port=port, folder=folder))
    with open("host.pub", encoding="ascii") as key, open("known", "w", encoding="ascii") as known:
        known.write(f"[127.0.0.1]:{port} {key.read()}")
    made = not os.path.isdir("/run/sshd")
    os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it empty, and nobody else's
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", f"{folder}/config"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: answers(port) or server.poll() is not None, "sshd answers")
        options = {"UserKnownHostsFile": f"{folder}/known", "StrictHostKeyChecking": "yes", "BatchMode": "yes", "IdentitiesOnly": "yes"}
        yield " ".join([f"ssh -T -x -F none -i {folder}/user -p {port} -l root", *(f"-o {name}={value}" for name, value in options.items())])
    finally:
        server.terminate()
        server.wait()
        if made:
            os.rmdir("/run/sshd")


def command(pid, ssh, *options):
    return [CKPT, "migrate", "-p", str(pid), "--to", "127.0.0.1", "--remote-ckpt", CKPT, "--timeout", "5", "--new-pidns", "--json", "--ssh", ssh, *options]


def migrate(pid, ssh, *options):
    return subprocess.run(command(pid, ssh, *options), text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)


def moves():
    """At once and lazily; the session ends, and what came with it stays."""
    with ssh_server() as ssh:
        for options in ([], ["--lazy"]):
            with Peer(8) as peer:
                done = migrate(peer.pid, ssh, *options)
                if done.returncode != 0:
                    yield f"{options}: exit {done.returncode}: {done.stderr}"
                    continue
                report = json.loads(done.stdout)
                if peer.all() != [report["pid_outside_there"]] or report["lazy"] != bool(options):
                    yield f"{options}: {peer.all()}, {report}"
                if problem := peer.problem():
                    yield f"{options}: {problem}"
            os.unlink("count")


def refuses():
    """A host that is another one, and a user who is not let in: nothing has been touched."""
    with ssh_server() as ssh, Peer(1) as peer:
        for changed in (ssh.replace("/known", "/host.pub"), ssh.replace("/user ", "/host ")):
            done = migrate(peer.pid, changed)
            if done.returncode != 8 or "has ended the connection" not in done.stderr:
                yield f"{changed}: exit {done.returncode}: {done.stderr}"
        if peer.all() != [peer.pid]:
            yield f"{peer.all()}"
        if problem := peer.problem():
            yield problem


def session_that_ends():
    """While pages come: what had run there ends, and the source is kept as it was."""
    with ssh_server() as ssh, Peer(8) as peer:
        with subprocess.Popen(command(peer.pid, ssh, "--lazy", "--bandwidth", "4M"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as moving:
            wait_until(lambda: len(peer.all()) == 2, "it is made there")
            before = peer.count()
            wait_until(lambda: peer.count() > before + 5, "it runs there")
            for client in clients_of(ssh):
                os.kill(client, signal.SIGKILL)
            err = moving.communicate(timeout=60)[1]
        if moving.returncode != 10 or "have run there" not in err:
            yield f"exit {moving.returncode}: {err}"
        wait_until(lambda: peer.all() == [peer.pid], "it ends there")
        if state_of(peer.pid) != "T":
            yield f"the source: {state_of(peer.pid)}"
        wait_until(lambda: not glob.glob("/dev/shm/.ckpt-receive-*"), "nothing is left")


def clients_of(ssh):
    """Of this test's server alone."""
    key = ssh.split(" -i ")[1].split()[0].encode()
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit():
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    words = stream.read().split(b"\0")
                if words[0] == b"ssh" and key in words:
                    yield int(entry)


if os.geteuid() != 0:
    print("not root: a process cannot be dumped and restored")
    sys.exit(77)
if SSHD is None or shutil.which("ssh") is None:
    print("no sshd (openssh-server), or no ssh")
    sys.exit(77)
become_subreaper()
main(moves, refuses, session_that_ends)
