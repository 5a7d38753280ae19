"""Servers of the tests: plain HTTP over a folder, and S3 that checks signatures by the standard library alone; both misbehave on request.

`servers.py FOLDER PORT` is an S3 server with one bucket ("bucket") whose objects outlive it; uploads that are not complete do not.

Faults are a list of callables that see a GET of an object (handler, name, data) and return True where they answered it: each is asked
until it is spent. Those in `write_faults` see a PUT, POST or DELETE (handler, what, key), `what` being one of put, part, begin, complete,
abort, delete; they are asked when its body has been read.
"""
import base64
import datetime
import hashlib
import hmac
import http.server
import os
import re
import ssl
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *args):
        pass

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.requests.append((self.command, self.path))
        self.server.heads.append(self.headers)
        self.serve()

    def etag_of(self, data):
        """Reckoned once for each object that stays."""
        known = self.server.etags.get(id(data))
        if known is None or known[0] is not data:
            known = self.server.etags[id(data)] = (data, '"%s"' % hashlib.md5(data).hexdigest())
            while len(self.server.etags) > 500:
                self.server.etags.pop(next(iter(self.server.etags)), None)
        return known[1]

    def send_object(self, name, data):
        etag = self.etag_of(data)
        if self.command == "GET":
            for fault in list(self.server.faults):
                if fault(self, name, data):
                    return
        if self.headers.get("If-Match", etag) != etag:
            self.answer(412)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and self.server.ranges:
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            self.answer(206, data[first : last + 1], ETag=etag, Content_Range=f"bytes {first}-{last}/{len(data)}")
        else:
            self.answer(200, data, ETag=etag)


class Files(Handler):
    """A folder, with pages of links for the folders in it, which leave out what begins with a dot, as nginx's do."""

    def serve(self):
        path = urllib.parse.unquote(self.path.split("?")[0])
        place = os.path.join(self.server.root, path.lstrip("/"))
        if path in self.server.refused:
            self.answer(403)
        elif path in self.server.pages:
            self.answer(200, self.server.pages[path].encode())
        elif path in self.server.redirects:
            self.answer(302, Location=self.server.redirects[path])
        elif os.path.isfile(place):
            with open(place, "rb") as stream:
                self.send_object(path, stream.read())
        elif os.path.isdir(place) and not path.endswith("/") and self.server.lists:
            self.answer(301, b"it is a folder", Location=urllib.parse.quote(path) + "/")
        elif os.path.isdir(place) and path.endswith("/") and self.server.lists:
            names = [n + "/" * os.path.isdir(os.path.join(place, n)) for n in sorted(os.listdir(place)) if not n.startswith(".")]
            self.answer(200, "".join(f'<a href="{urllib.parse.quote(n)}">{n}</a>' for n in ["../", *names]).encode(), Content_Type="text/html")
        else:
            self.answer(404, b"no")


class S3(Handler):
    """Buckets are folders. HEAD, GET with ranges, ListObjectsV2 by pages of three; every request must be signed rightly."""

    KEY, SECRET = "TESTKEY", "test/secret+key"

    def signed(self, path, query):
        parts = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)",
                             self.headers.get("Authorization", ""))
        if not parts or parts[1] != self.KEY:
            return False
        then = datetime.datetime.strptime(self.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs((datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()) > 900:
            return False
        quoted = sorted((urllib.parse.quote(k, "-_.~"), urllib.parse.quote(v, "-_.~")) for k, v in query)
        names = parts[4].split(";")
        if self.server.token is not None and (self.headers["x-amz-security-token"] != self.server.token or "x-amz-security-token" not in names):
            return False
        text = "\n".join([self.command, urllib.parse.quote(urllib.parse.unquote(path), "/-_.~"), "&".join(f"{k}={v}" for k, v in quoted),
                          *[f"{n}:{self.headers[n].strip()}" for n in names], "", parts[4], self.headers["x-amz-content-sha256"]])
        scope = f"{parts[2]}/{parts[3]}/s3/aws4_request"
        key = ("AWS4" + self.SECRET).encode()
        for part in (parts[2], parts[3], "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        to_sign = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, hashlib.sha256(text.encode()).hexdigest()])
        return hmac.compare_digest(hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest(), parts[5])

    def error(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>about {code}</Message></Error>".encode())

    def do_PUT(self):
        self.server.requests.append((self.command, self.path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.serve()

    do_POST = do_DELETE = do_PUT

    def write(self, objects, key, query):
        """One of the requests that change something."""
        uploads, upload = self.server.uploads, query.get("uploadId")
        what = {"PUT": "part" if upload else "put", "POST": "complete" if upload else "begin", "DELETE": "abort" if upload else "delete"}[self.command]
        for fault in list(self.server.write_faults):
            if fault(self, what, key):
                return None
        if upload is not None and upload not in uploads:
            return self.error(404, "NoSuchUpload")
        md5 = hashlib.md5(self.body)
        if self.headers.get("Content-MD5", "") not in ("", base64.b64encode(md5.digest()).decode()):
            return self.error(400, "BadDigest")
        if what in ("put", "complete") and self.headers.get("If-None-Match") == "*" and key in objects:
            return self.error(412, "PreconditionFailed")
        if what == "put":
            objects[key] = self.body
            return self.answer(200, ETag=f'"{md5.hexdigest()}"')
        if what == "begin":
            upload = f"up/load+{len(self.server.requests)}"
            uploads[upload] = (key, {})
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode())
        if what == "part":
            uploads[upload][1][int(query["partNumber"])] = self.body
            return self.answer(200, ETag=f'"{md5.hexdigest()}"')
        if what == "complete":
            named = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>&quot;(\w+)&quot;</ETag></Part>", self.body.decode())
            parts = uploads[upload][1]
            if any(hashlib.md5(parts.get(int(n), b"none")).hexdigest() != etag for n, etag in named):
                return self.error(400, "InvalidPart")
            if any(len(parts[int(n)]) < 5 << 20 for n, _ in named[:-1]):
                return self.error(400, "EntityTooSmall")
            objects[key] = b"".join(parts[int(n)] for n, _ in named)
            del uploads[upload]
            etag = hashlib.md5(b"".join(bytes.fromhex(e) for _, e in named)).hexdigest()
            self.server.etags[id(objects[key])] = (objects[key], f'"{etag}-{len(named)}"')
            return self.answer(200, f"<CompleteMultipartUploadResult><ETag>&quot;{etag}-{len(named)}&quot;</ETag></CompleteMultipartUploadResult>".encode())
        if what == "abort":
            del uploads[upload]
        else:
            objects.pop(key, None)
        return self.answer(204)

    def list_parts(self, upload, after):
        """By pages of two."""
        if upload not in self.server.uploads:
            return self.error(404, "NoSuchUpload")
        parts = sorted(self.server.uploads[upload][1].items())
        page = [part for part in parts if part[0] > after][:2]
        more = bool(page) and page[-1][0] != parts[-1][0]
        listed = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{hashlib.md5(data).hexdigest()}&quot;</ETag></Part>" for number, data in page)
        self.answer(200, f"<ListPartsResult>{listed}<IsTruncated>{str(more).lower()}</IsTruncated></ListPartsResult>".encode())

    def serve(self):
        path, _, query_text = self.path.partition("?")
        query = urllib.parse.parse_qsl(query_text, keep_blank_values=True)
        if not self.signed(path, query):
            return self.error(403, "SignatureDoesNotMatch")
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if (named := self.headers["Host"].partition(".")[0]) in self.server.buckets:  # BUCKET.localhost
            bucket, key = named, urllib.parse.unquote(path).lstrip("/")
        objects = self.server.buckets.get(bucket)
        if objects is None:
            return self.error(404, "NoSuchBucket")
        if self.command not in ("GET", "HEAD"):
            return self.write(objects, key, dict(query))
        upload = dict(query).get("uploadId")
        if upload is not None:
            return self.list_parts(upload, int(dict(query).get("part-number-marker", "0")))
        if key:
            return self.send_object(key, objects[key]) if key in objects else self.error(404, "NoSuchKey")
        asked = dict(query)
        keys = sorted(k for k in objects if k.startswith(asked.get("prefix", "")))
        begin = int(asked.get("continuation-token", "0"))
        page = keys[begin : begin + self.server.page]
        more = begin + self.server.page < len(keys)
        contents = "".join(f"<Contents><Key>{escape(k)}</Key><Size>{len(objects[k])}</Size>"
                           f"<ETag>{escape(self.etag_of(objects[k]), {chr(34): '&quot;'})}</ETag></Contents>" for k in page)
        self.answer(200, (f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{contents}'
                          f"<IsTruncated>{str(more).lower()}</IsTruncated>"
                          + (f"<NextContinuationToken>{begin + self.server.page}</NextContinuationToken>" if more else "")
                          + "</ListBucketResult>").encode())


class Server:
    """`with Server(Files, root=folder) as url:`; its attributes may be changed meanwhile."""

    def __init__(self, handler, port=0, host="127.0.0.1", **settings):
        self.http = http.server.ThreadingHTTPServer((host, port), handler)
        defaults = {"root": None, "buckets": {}, "faults": [], "requests": [], "ranges": True, "lists": True, "pages": {}, "redirects": {}, "refused": set(),
                    "page": 3, "write_faults": [], "token": None, "heads": [], "uploads": {}, "etags": {}}
        for name, value in {**defaults, **settings}.items():
            setattr(self.http, name, value)
        self.url = "http://%s:%d" % self.http.server_address

    def speak_tls(self, certificate, key):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")
        return self

    def __enter__(self):
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()


class DurableObjects(dict):
    """Each object is a file as well, which is there whole or not at all."""

    def __init__(self, folder):
        self.folder = folder
        super().__init__({urllib.parse.unquote(n): open(os.path.join(folder, n), "rb").read() for n in os.listdir(folder) if not n.startswith(".")})

    def file(self, key):
        return os.path.join(self.folder, urllib.parse.quote(key, "").replace(".", "%2E"))

    def __setitem__(self, key, data):
        with open(os.path.join(self.folder, f".{threading.get_ident()}"), "wb") as out:
            out.write(data)
        os.rename(out.name, self.file(key))
        super().__setitem__(key, data)

    def pop(self, key, default=None):
        if key in self:
            os.unlink(self.file(key))
        return super().pop(key, default)


def main():
    folder, host, port = sys.argv[1:]
    server = Server(S3, int(port), host, buckets={"bucket": DurableObjects(folder)}, page=1000)
    server.http.serve_forever()


if __name__ == "__main__":
    main()
