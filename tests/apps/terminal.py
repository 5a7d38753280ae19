#!/usr/bin/env python3
"""A tmux server with three windows on terminals of their own: vim in the middle of an edit, less in the middle of a file, a
shell with variables, a stopped job and a function. What is on the screens stays, and all three go on."""
import os
import re
import subprocess
import time

from app import Failure, Process, expect, find, install, main, wait_until


class Tmux:
    def __init__(self, run):
        self.run = run
        # Short: the path of a unix socket has little room. Nothing of the user's configuration.
        self.environment = {"PATH": os.environ.get("PATH", ""), "HOME": run.folder, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
                            "SHELL": "/bin/bash", "TMUX_TMPDIR": run.folder}

    def __call__(self, *words):
        done = subprocess.run([find("tmux"), "-L", "t", "-f", "/dev/null", *words], env=self.environment, cwd=self.run.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise Failure(f"tmux {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def screen(self, window):
        return self("capture-pane", "-p", "-e", "-t", window)

    def keys(self, window, *keys):
        self("send-keys", "-t", window, *keys)

    def wait_screen(self, window, pattern):
        try:
            wait_until(lambda: re.search(pattern, self("capture-pane", "-p", "-t", window), re.M), "", 20, 0.05)
        except Failure:
            raise Failure(f"window {window} never shows {pattern}:\n{self.screen(window)}") from None

    def still_screen(self, window):
        """Once it no longer changes."""
        last, since = None, time.monotonic()
        while time.monotonic() < since + 0.3:
            now = self.screen(window)
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.05)
        return last


def start_windows(run, tmux):
    with open(os.path.join(run.folder, "long"), "w", encoding="ascii") as text:
        text.writelines(f"line {number} of the long file\n" for number in range(1, 5001))
    tmux("new-session", "-d", "-s", "s", "-x", "90", "-y", "28", "-n", "vim", f"exec {find('vim')} -u NONE -N edited")
    tmux("set-option", "-g", "status", "off")
    tmux("new-window", "-d", "-n", "less", f"exec {find('less')} long")
    tmux("new-window", "-d", "-n", "shell", "exec bash --norc --noprofile")
    tmux.keys("vim", "i", "first line", "Enter", "second line", "Escape", "o", "third line, not finished")
    tmux.wait_screen("vim", "not finished")
    tmux.wait_screen("less", "^line 1 of")
    tmux.keys("less", "2000g", "/line 2345", "Enter")
    tmux.wait_screen("less", "^line 2345")
    tmux.keys("shell", "kept=4711; answer() { echo answer $((kept + $1)); }; sleep 1000", "Enter")
    time.sleep(0.3)
    tmux.keys("shell", "C-z")
    tmux.wait_screen("shell", "Stopped")
    tmux.keys("shell", "stty -a | grep -o 'rows.*columns [0-9]*'", "Enter")
    tmux.wait_screen("shell", "rows 28")
    tmux.keys("shell", "half a comm")
    tmux.wait_screen("shell", "half a comm$")


def go_on(run, tmux):
    """Everything that the three remember is asked for."""
    tmux.keys("vim", " now it is", "Escape", ":w", "Enter")
    edited = os.path.join(run.folder, "edited")
    wait_until(lambda: os.path.exists(edited) and os.path.getsize(edited) > 0, "vim does not write", 20, 0.05)
    with open(edited, encoding="ascii") as text:
        expect(text.read(), "first line\nsecond line\nthird line, not finished now it is\n", "what vim wrote")
    tmux.keys("vim", "uu", ":w", "Enter")
    wait_until(lambda: os.path.getsize(edited) == 0 or "third" not in open(edited, encoding="ascii").read(),
               "vim does not undo", 20, 0.05)
    tmux.keys("vim", ":q!", "Enter")
    tmux.keys("less", "n")
    tmux.wait_screen("less", "Pattern not found|^line 2345|END")
    tmux.keys("less", "Enter", "100g")
    tmux.wait_screen("less", "^line 100 of")
    tmux("resize-window", "-t", "less", "-x", "70", "-y", "12")
    tmux.keys("less", "200g")
    tmux.wait_screen("less", "^line 210 of")
    expect("line 211 of" in tmux.screen("less"), False, "a line below the smaller window")
    tmux.keys("less", "q")
    tmux.keys("shell", "C-u", "answer 1000", "Enter")
    tmux.wait_screen("shell", "^answer 5711")
    tmux.keys("shell", "clear; jobs", "Enter")
    tmux.wait_screen("shell", "Stopped +sleep 1000")
    tmux.keys("shell", "fg", "Enter")
    time.sleep(0.2)
    tmux.keys("shell", "C-c")
    tmux.keys("shell", "echo status $?", "Enter")
    tmux.wait_screen("shell", "^status 130")
    tmux.keys("shell", "exit", "Enter")


def test(run):
    install(tmux="tmux", vim="vim", less="less")
    tmux = Tmux(run)
    start_windows(run, tmux)
    server = Process.adopt(run, "tmux", int(tmux("display-message", "-p", "#{pid}")))
    before = {window: tmux.still_screen(window) for window in ("vim", "less", "shell")}
    server.checkpoint()
    for window, screen in before.items():
        expect(tmux.still_screen(window), screen, f"the screen of {window}")
    go_on(run, tmux)
    server.wait_end()
    expect(server.ending, 0, "the exit status of the tmux server")


if __name__ == "__main__":
    main(test)
