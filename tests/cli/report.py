#!/usr/bin/env python3
"""ckpt inspect --html: what is in the page, and what a browser makes of it. The browser is chromium where one is installed.

    report.py CKPT_BINARY [TEST...]
"""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

CKPT = os.path.abspath(sys.argv.pop(1))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IMAGE = pathlib.Path(__file__).resolve().parents[1] / "images/format-3/epoll/before"
HOSTILE = ["</script><script>document.title='pwned'</script>.a", "<img src=x onerror=document.title='pwned'>.b", "\"quote\".'s", "<!--.x",
           "back\\slash.\u2028line", "a&lt;b", "\x1b[31m.c", "__proto__.constructor", "toString.valueOf", "", ".", "@DATA@.@JS@", "javascript:alert(1)"]


def write_safetensors(path, arrays):
    header, body, at = {}, [], 0
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        body.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(body))


class Report(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-report-"))
        self.addCleanup(shutil.rmtree, self.work)

    def page(self, arrays, *options, name="page", code=0):
        source = self.work / f"{name}.safetensors"
        write_safetensors(source, arrays)
        target = self.work / f"{name}.html"
        done = subprocess.run([CKPT, "inspect", source, "--html", target, *map(str, options)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual("is different from" in done.stderr, code == 1, done.stderr)
        self.assertEqual(sorted(p.name for p in self.work.iterdir() if p.name.startswith(name)), [f"{name}.html", f"{name}.safetensors"])
        return target

    def data(self, page):
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
        return json.loads(found.group(1))

    def browse(self, page, script="", *options):
        """The document after its scripts have run; `script` runs behind them and leaves its answer in the title."""
        if BROWSER is None:
            self.skipTest("no chromium is installed: the page is not tried in a browser")
        copy = page.with_suffix(".test.html")
        watch = "<head><script>addEventListener('error', e => document.documentElement.dataset.error = e.message);</script>"
        ending = f"<script>(() => {{{script}}})();</script></body>"
        copy.write_text(page.read_text(encoding="utf-8").replace("<head>", watch).replace("</body>", ending), encoding="utf-8")
        done = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.work}/profile", "--virtual-time-budget=20000",
                               *options, "--dump-dom", f"file://{copy}"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-1000:])
        self.assertNotIn("data-error", done.stdout)
        self.assertRegex(done.stdout, r'data-ready="\d+"', "its script has not come to its end")
        return done.stdout

    def title(self, dom):
        return html.unescape(re.search(r"<title>(.*?)</title>", dom, re.S).group(1))

    def test_the_page_holds_what_inspect_prints_and_needs_nothing_else(self):
        arrays = {"a.w": numpy.arange(6, dtype="<f4").reshape(2, 3), "a.b": numpy.full(3, numpy.nan, "<f4")}
        page = self.page(arrays, "--stats")
        data = self.data(page)
        self.assertEqual((data["format"], data["stats"], len(data["files"])), ("safetensors", True, 1))
        tensors = {t[0]: t[1:] for t in data["tensors"]}
        self.assertEqual(tensors["a.w"], ["float32", [2, 3], 24, 1, 0, 5, 2.5, numpy.arange(6).std(), 0, 0, 1])
        self.assertEqual(tensors["a.b"], ["float32", [3], 12, 1, None, None, None, None, 3, 0, 0])
        text = page.read_text(encoding="utf-8")
        self.assertIsNone(re.search(r"https?://|@import|url\(|\bsrc=|\bhref=|fetch\(|XMLHttpRequest", text))
        self.assertIn("default-src 'none'", text)
        stdout = subprocess.run([CKPT, "inspect", self.work / "page.safetensors", "--stats", "--html", "-"], capture_output=True, check=True).stdout
        made = re.compile(r'"made": "[^"]*"')
        self.assertEqual(made.sub("", stdout.decode()), made.sub("", text))

    def test_the_page_says_by_what_and_when_it_was_made_and_what_marks_mean(self):
        page = self.page({f"layers.{i}.w": numpy.full(4, numpy.nan if i == 1 else i, "<f4") for i in range(3)}, "--stats")
        data = self.data(page)
        version = json.loads(subprocess.run([CKPT, "version", "--json"], capture_output=True, check=True).stdout)
        self.assertEqual(data["version"].split()[1], version["version"])
        self.assertRegex(data["made"], r"^20\d\d-\d\d-\d\dT[\d:.]+Z$")
        dom = self.browse(page)
        self.assertIn(f"Made by {data['version']} at {data['made']}.", dom)
        self.assertIn("one standard deviation to either side", dom)
        self.assertIn("holds NaN or infinities, which", dom)

    def test_a_process_image_has_a_page(self):
        page = self.work / "image.html"
        subprocess.run([CKPT, "inspect", IMAGE, "--html", page], capture_output=True, check=True)
        told = json.loads(subprocess.run([CKPT, "inspect", IMAGE, "--json"], capture_output=True, check=True).stdout)
        data = self.data(page)
        self.assertEqual({key: data[key] for key in told}, told)
        text = page.read_text(encoding="utf-8")
        self.assertIsNone(re.search(r"https?://|@import|url\(|\bsrc=|\bhref=|fetch\(|XMLHttpRequest", text))
        script = """
          const rows = id => document.querySelectorAll('#' + id + ' .row').length, find = document.getElementById('find');
          const out = [rows('processrows'), rows('phaserows'), rows('fdrows') > 0, rows('threadrows'), document.getElementById('summary').textContent];
          find.value = '[stack]'; find.oninput();
          setTimeout(() => { out.push(rows('maprows')); document.title = JSON.stringify(out); }, 500);"""
        processes, phases, descriptors, threads, summary, stacks = json.loads(self.title(self.browse(page, script)))
        self.assertEqual((processes, phases, stacks), (len(told["processes"]), len(told["stats"]["phases_us"]), len(told["processes"])))
        self.assertTrue(descriptors)
        self.assertEqual(threads, sum(len(p["threads"]) for p in told["processes"]))
        self.assertRegex(summary, r"^1 process, 1 thread, \d+ mappings, \d+ descriptors; [\d.]+ KiB of memory$")

    def test_hostile_names_stay_names(self):
        page = self.page({key: numpy.zeros(4, "<f4") for key in HOSTILE}, "--stats", "--diff", self.work / "page.safetensors")
        self.assertEqual(sorted(t[0] for t in self.data(page)["tensors"]), sorted(HOSTILE))
        self.assertEqual(page.read_text(encoding="utf-8").count("</script>"), 2)
        dom = self.browse(page)
        self.assertIn("page.safetensors", self.title(dom))
        self.assertNotIn("<img", dom)
        self.assertIn("&lt;img src=x onerror", dom)

    def test_what_is_different_is_on_the_page(self):
        write_safetensors(self.work / "other.safetensors", {"same": numpy.ones(3, "<f4"), "value": numpy.arange(4, dtype="<f4"), "there<": numpy.zeros(1, "<f4")})
        value = numpy.arange(4, dtype="<f4")
        value[1] = 3
        page = self.page({"same": numpy.ones(3, "<f4"), "value": value, "here<": numpy.zeros(2, "<f4")}, "--diff", self.work / "other.safetensors", code=1)
        diff = self.data(page)["diff"]
        self.assertEqual((diff["equal"], diff["compared"]), (False, 2))
        self.assertEqual(diff["rows"], [["here<", "only here", "float32 2", 0, 0, 0], ["there<", "only there", "float32 1", 0, 0, 0], ["value", "values", "", 1, 4, 2]])
        dom = self.browse(page)
        self.assertIn("3 different, 2 tensors in both", dom)
        self.assertIn("1 of 4", dom)

    def test_the_map_zooms_and_the_table_finds_and_sorts(self):
        page = self.page({f"model.layers.{i}.{part}.weight": numpy.full((i + 1) * 50, i, "<f4") for i in range(12) for part in ("up", "down")}, "--stats")
        script = """
          const out = [], map = document.getElementById('map'), box = map.getBoundingClientRect();
          const click = () => map.dispatchEvent(new MouseEvent('click', {clientX: box.left + 5, clientY: box.top + 60}));
          const crumbs = () => document.getElementById('crumbs').textContent;
          out.push(crumbs()); click(); out.push(crumbs()); click(); out.push(crumbs());
          map.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})); out.push(crumbs());
          const find = document.getElementById('find'); find.value = '.11.UP'; find.oninput();
          setTimeout(() => {
            out.push(document.getElementById('count').textContent, document.querySelectorAll('#tensorrows .row').length);
            find.value = ''; find.oninput();
            setTimeout(() => {
              [...document.querySelectorAll('#tensorrows .head button')].find(b => b.textContent === 'Mean').click();
              out.push(document.querySelector('#tensorrows .row span').textContent);
              document.title = JSON.stringify(out);
            }, 500);
          }, 500);"""
        dom = self.browse(page, script)
        self.assertTrue(self.title(dom).startswith("["), self.title(dom))
        got = json.loads(self.title(dom))
        self.assertEqual(got[0].split(" \u2013 ")[1], "30.5 KiB, 24 tensors")
        self.assertIn("layers", got[1])
        self.assertIn("11", got[2].split(" \u2013 ")[0])
        self.assertEqual(got[3], got[1])
        self.assertEqual(got[4:6], ["1 of 24", 1])
        self.assertTrue(got[6].startswith("model.layers.11."), got[6])

    def test_dark_and_narrow_windows(self):
        page = self.page({f"layers.{i}.w": numpy.zeros(100, "<f4") for i in range(50)}, "--stats")
        script = "document.title = JSON.stringify([getComputedStyle(document.body).backgroundColor, document.documentElement.scrollWidth <= innerWidth]);"
        light, fits = json.loads(self.title(self.browse(page, script, "--window-size=1300,900")))
        self.assertTrue(fits)
        dark, fits = json.loads(self.title(self.browse(page, script, "--window-size=500,900", "--blink-settings=preferredColorScheme=0")))
        self.assertTrue(fits)
        self.assertEqual((light, dark), ("rgb(255, 255, 255)", "rgb(20, 22, 26)"))

    def test_100_000_tensors_are_drawn_in_seconds(self):
        page = self.page({f"decoder.layers.{i // 10}.part{i % 10}.weight": numpy.zeros(1, "<f4") for i in range(100_000)}, "--stats")
        self.assertLess(page.stat().st_size, 20 << 20)
        start = time.monotonic()
        dom = self.browse(page, "document.title = String(performance.now() | 0);")
        print(f"100,000 tensors: {page.stat().st_size >> 10} KiB, drawn after {self.title(dom)} ms, browser's start and end included {time.monotonic() - start:.1f} s", file=sys.stderr)
        self.assertLess(len(re.findall(r'class="row"', dom)), 200)


if __name__ == "__main__":
    unittest.main()
