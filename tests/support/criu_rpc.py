"""criu's RPC as a container runtime speaks it: a few lines of protobuf's wire format, a socketpair, and criu swrk behind it."""
import array
import os
import socket
import subprocess

# Request types.
DUMP, RESTORE, CHECK, PRE_DUMP, PAGE_SERVER, NOTIFY = 1, 2, 3, 4, 5, 6
FEATURE_CHECK, VERSION, WAIT_PID, SINGLE_PRE_DUMP = 9, 10, 11, 13
# Numbers of criu_opts.
OPTS = dict(images_dir_fd=1, pid=2, leave_running=3, ext_unix_sk=4, tcp_established=5, evasive_devices=6, shell_job=7, file_locks=8, log_level=9,
            log_file=10, ps=11, notify_scripts=12, root=13, parent_img=14, track_mem=15, auto_dedup=16, work_dir_fd=17, link_remap=18,
            manage_cgroups=24, cg_root=25, rst_sibling=26, inherit_fd=27, manage_cgroups_mode=34, external=37, empty_ns=38, freeze_cgroup=44,
            lazy_pages=48, status_fd=49, orphan_pts_master=50, config_file=51, lsm_profile=53, lsm_mount_context=63, later=900)


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def encode(*fields):
    """Pairs of a field's number and an integer, a string or bytes (a message)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def decode(data):
    """Field number -> its values, in order: integers, and bytes of what has a length."""
    out, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            size = number()
            value, at = data[at:at + size], at + size
        out.setdefault(key >> 3, []).append(value)
    return out


def options(**fields):
    """criu_opts: lists are repeated fields, pairs in them messages of two fields."""
    pairs = []
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            pairs.append((OPTS[name], encode((1, one[0]), (2, one[1])) if isinstance(one, tuple) else one))
    return encode(*pairs)


class Swrk:
    """A `criu swrk`, and this end of its socket. `ack`: the answer to each notification, by its name."""

    def __init__(self, criu, ack=lambda script: True, **keywords):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ack, self.notified, self.fds = ack, [], []
        with theirs:
            number = theirs.fileno()
            keep = keywords.pop("pass_fds", ())
            keywords.setdefault("stdin", subprocess.DEVNULL)
            self.process = subprocess.Popen([*criu, "swrk", str(number)], pass_fds=[number, *keep], **keywords)
        self.socket.settimeout(60)

    def ask(self, kind, opts=None, **fields):
        """The response to a request; notifications on the way are noted and answered."""
        request = [(1, kind)] + ([(2, opts)] if opts is not None else [])
        request += [({"keep_open": 4, "features": 5, "pid": 6}[name], value) for name, value in fields.items()]
        self.socket.send(encode(*request))
        while True:
            data, control, _, _ = self.socket.recvmsg(1 << 20, 4096)
            for level, kind_of, value in control:
                if (level, kind_of) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.fds += array.array("i", value[:len(value) // 4 * 4]).tolist()
            if not data:
                raise EOFError("criu swrk has ended without an answer")
            answer = decode(data)
            if answer[1] != [NOTIFY]:
                return answer
            notify = decode(answer[5][0])
            script = notify[1][0].decode()
            self.notified.append((script, notify.get(2, [0])[0]))
            self.socket.send(encode((1, NOTIFY), (3, 1 if self.ack(script) else 0)))

    def end(self):
        self.socket.close()
        return self.process.wait(60)


def folder(path):
    os.makedirs(path, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
