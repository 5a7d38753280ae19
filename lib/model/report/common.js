"use strict";
// Names come from strangers: they reach the page through textContent and canvas text only.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, text, className) {
  const out = document.createElement(tag);
  if (text !== undefined) out.textContent = text;
  if (className) out.className = className;
  return out;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; bytes >= 1000 && unit < 5; ++unit) bytes /= 1024;
  return (unit === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes.toPrecision(3)) + " " + units[unit];
}
const count = n => n.toLocaleString("en");
const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : what.endsWith("s") ? "es" : "s"}`;
const natural = new Intl.Collator("en", {numeric: true}).compare;

// ---- what the map shows: `items` = {parts, kind, bytes, text}: a path of names, what gives the colour, a line for who points at it ----

let items = [], noun = "", total = 0, byBytes = [], hueOf = new Map();
// Hues that people with any colour vision tell apart (Okabe and Ito's), told by their names in the legend as well.
const HUES = [211, 32, 164, 327, 50, 196, 18, 264, 90, 345];
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (kind, raised) => `hsl(${hueOf.get(kind)} 45% ${(dark.matches ? 32 : 72) + (raised ? 8 : 0)}%)`;

function swatch(paint, text) {
  const item = element("li"), square = element("span", undefined, "swatch");
  square.style.background = paint;
  item.append(square, text);
  return item;
}

function legend() {
  byId("kinds").replaceChildren(...byBytes.map(([name, sum]) => swatch(colour(name, false), `${name}: ${size(sum.bytes)}, ${many(sum.count, noun)}`)));
}

// ---- names as a tree ---------------------------------------------------------------------------------------------

function treeOf(all) {
  const root = {name: "", path: "", up: null, bytes: 0, count: 0, parts: new Map(), item: null};
  for (const item of all) {
    let node = root;
    node.bytes += item.bytes;
    ++node.count;
    for (const part of item.parts) {
      let below = node.parts.get(part);
      if (!below) {
        below = {name: part, path: node.up ? node.path + separator + part : part, up: node, bytes: 0, count: 0, parts: new Map(), item: null};
        node.parts.set(part, below);
      }
      node = below;
      node.bytes += item.bytes;
      ++node.count;
    }
    node.item = item;
  }
  return root;
}

/** What is drawn below a node, greatest first; an item whose name goes on in others stands among them. */
function partsOf(node) {
  if (!node.sorted) {
    node.sorted = [...node.parts.values()];
    if (node.item && node.sorted.length) {
      node.sorted.push({name: node.name, path: node.path, up: node, bytes: node.item.bytes, count: 1, parts: new Map(), item: node.item});
    }
    // A part with nothing beside it is one with what it holds.
    node.sorted = node.sorted.map(part => {
      let name = part.name;
      while (part.parts.size === 1 && !part.item) {
        part = part.parts.values().next().value;
        name += separator + part.name;
      }
      part.label = name;
      return part;
    });
    node.sorted.sort((a, b) => b.bytes - a.bytes || natural(a.name, b.name));
  }
  return node.sorted;
}

// ---- the treemap: squarified (Bruls, Huizing, van Wijk), only as deep as there are pixels ------------------------------

function squarify(nodes, x, y, w, h, place) {
  let bytes = nodes.reduce((sum, n) => sum + n.bytes, 0), i = 0;
  while (i < nodes.length && bytes > 0 && w > 0 && h > 0) {
    const side = Math.min(w, h), scale = w * h / bytes;
    let row = 0, end = i, worst = Infinity;
    while (end < nodes.length) {
      const next = row + nodes[end].bytes, strip = next * scale / side;
      const ratio = Math.max(nodes[i].bytes * scale / (strip * strip), strip * strip / (nodes[end].bytes * scale || 1e-9));
      if (end > i && ratio > worst) break;
      worst = ratio;
      row = next;
      ++end;
    }
    const strip = row * scale / side;
    for (let at = 0; i < end; ++i) {
      const length = row > 0 ? nodes[i].bytes / row * side : 0;
      if (w >= h) place(nodes[i], x, y + at, strip, length);
      else place(nodes[i], x + at, y, length, strip);
      at += length;
    }
    if (w >= h) x += strip, w -= strip;
    else y += strip, h -= strip;
    bytes -= row;
  }
}

const map = byId("map");
let separator = ".", root = treeOf([]), here = root, drawn = [], pointed = null;

function prepare(canvas) {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, box.width, box.height];
}

/** The kind that most bytes below a node have: what a part too small to be opened is painted with. */
function mainKind(node) {
  while (!node.item && node.parts.size) node = partsOf(node)[0];
  return node.item ? node.item.kind : byBytes[0][0];
}

function write(pen, text, x, y, room) {
  if (room < 28) return;
  let shown = text;
  for (let kept = text.length; kept > 1 && pen.measureText(shown).width > room;) {
    kept = Math.max(1, Math.floor(kept * .8) - 1);
    shown = text.slice(0, Math.ceil(kept / 2)) + "\u2026" + text.slice(text.length - Math.floor(kept / 2));
  }
  pen.fillText(shown, x, y);
}

function drawMap() {
  const [pen, width, height] = prepare(map);
  const ink = css("--ink"), ground = css("--ground"), soft = css("--raised");
  drawn = [];
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "top";
  const draw = (node, x, y, w, h, depth) => {
    if (w < 1.5 || h < 1.5) return;
    drawn.push({node, x, y, w, h, depth});
    const leaf = !node.parts.size || w < 14 || h < 14;
    pen.fillStyle = leaf ? colour(mainKind(node), node === pointed) : soft;
    pen.fillRect(x, y, w, h);
    pen.strokeStyle = ground;
    pen.lineWidth = depth < 2 ? 2 : 1;
    pen.strokeRect(x, y, w, h);
    const named = leaf ? h >= 17 && w >= 34 : h >= 52 && w >= 52;
    if (named) {
      pen.fillStyle = ink;
      write(pen, node.label || node.name || "(no name)", x + 4, y + 3, w - 8);
      if (leaf && h >= 34) write(pen, size(node.bytes), x + 4, y + 18, w - 8);
    }
    if (leaf) return;
    const head = named ? 18 : 0, rim = named ? 2 : 0;
    squarify(partsOf(node), x + rim, y + head, w - 2 * rim, h - head - rim, (n, a, b, c, d) => draw(n, a, b, c, d, depth + 1));
  };
  const parts = here.parts.size ? partsOf(here) : [here];
  squarify(parts, 0, 0, width, height, (n, x, y, w, h) => draw(n, x, y, w, h, 1));
}

function crumbs() {
  const path = [];
  for (let node = here; node; node = node.up) path.unshift(node);
  byId("crumbs").replaceChildren(...path.flatMap((node, i) => {
    const button = element("button", node === root ? "all" : node.name || "(no name)");
    button.type = "button";
    button.onclick = () => go(node);
    return i ? [` ${separator} `, button] : [button];
  }), ` \u2013 ${size(here.bytes)}, ${many(here.count, noun)}`);
}

function go(node) {
  while (node !== root && node.parts.size === 1 && !node.item) node = node.parts.values().next().value;
  here = node;
  crumbs();
  drawMap();
}

function at(event) {
  const box = map.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let found = null;
  for (const d of drawn) if (x >= d.x && x < d.x + d.w && y >= d.y && y < d.y + d.h && (!found || d.depth > found.depth)) found = d;
  return found;
}

map.onmousemove = event => {
  const found = at(event), node = found && found.node;
  if (node === pointed) return;
  pointed = node;
  const item = node && !node.parts.size && node.item;
  byId("under").textContent = !node ? "" : item ? item.text
    : `${node.path}: ${size(node.bytes)} (${(100 * node.bytes / (total || 1)).toFixed(1)} %), ${many(node.count, noun)}`;
  if (drawn.length < 5000) drawMap();
};
map.onmouseleave = () => { pointed = null; drawMap(); };
map.onclick = event => {
  // One level at a time: the part of `here` that was hit.
  let node = at(event)?.node;
  const parts = partsOf(here);
  while (node && !parts.includes(node)) node = node.up;
  if (node && node.parts.size) go(node);
};
map.onkeydown = event => {
  if ((event.key === "Escape" || event.key === "Backspace") && here.up) {
    let up = here.up;
    while (up.up && up.parts.size === 1) up = up.up;
    here = up;
    crumbs();
    drawMap();
    event.preventDefault();
  } else if (event.key === "Enter" && here.parts.size) {
    go(partsOf(here)[0]);
  }
};

/** `what`: what one item is called; `between`: between the names of a path. */
function showSizes(all, what, between) {
  items = all;
  noun = what;
  separator = between;
  const kinds = new Map();
  for (const item of items) {
    const sum = kinds.get(item.kind) || {bytes: 0, count: 0};
    sum.bytes += item.bytes;
    ++sum.count;
    kinds.set(item.kind, sum);
  }
  byBytes = [...kinds].sort((a, b) => b[1].bytes - a[1].bytes);
  hueOf = new Map(byBytes.map(([name], i) => [name, HUES[i % HUES.length]]));
  total = items.reduce((sum, item) => sum + item.bytes, 0);
  root = here = treeOf(items);
}

// ---- tables: only the rows in sight are in the document --------------------------------------------------------------

const ROW = 24;

/** A long text that does not fit loses its middle: names are told apart by their ends. */
function keepEnds(cell, text) {
  let end = text.length - 24;
  if (end < 16) return;
  if (/[\udc00-\udfff]/.test(text[end])) --end;
  cell.replaceChildren(element("span", text.slice(0, end)), element("span", text.slice(end)));
  cell.classList.add("ends");
}

/** `columns`: {name, width, number?, text(row), value?(row), bar?(row), bad?(row)}. Returns what shows other rows. */
function table(host, columns, rows, least) {
  const head = element("div", undefined, "head"), body = element("div", undefined, "rows");
  let shown = rows, order = null, turn = 1;
  for (const box of [head, body]) {
    box.style.setProperty("--columns", columns.map(c => c.width).join(" "));
    box.style.setProperty("--least", least);
  }
  const fill = () => {
    const first = Math.max(0, Math.floor(host.scrollTop / ROW) - 10), last = Math.min(shown.length, first + Math.ceil(host.clientHeight / ROW) + 20);
    body.replaceChildren(...shown.slice(first, last).map((row, i) => {
      const line = element("div", undefined, "row");
      line.style.top = (first + i) * ROW + "px";
      for (const c of columns) {
        const cell = element("span", c.text(row), [c.number ? "number" : "", c.bad && c.bad(row) ? "bad" : ""].join(" ").trim());
        if (!c.number) {
          cell.title = c.text(row);
          keepEnds(cell, cell.title);
        }
        if (c.bar) {
          cell.classList.add("bar");
          const bar = element("i");
          bar.style.setProperty("--share", c.bar(row));
          cell.append(bar);
        }
        line.append(cell);
      }
      return line;
    }));
  };
  const show = list => {
    shown = [...list];
    if (order) shown.sort((a, b) => turn * (order.value ? (order.value(b) ?? -Infinity) - (order.value(a) ?? -Infinity) : natural(order.text(a), order.text(b))));
    body.style.height = shown.length * ROW + "px";
    fill();
  };
  for (const c of columns) {
    const button = element("button", c.name, c.number ? "number" : "");
    button.type = "button";
    button.onclick = () => {
      turn = order === c ? -turn : 1;
      order = c;
      show(shown);
    };
    head.append(button);
  }
  host.append(head, body);
  host.onscroll = () => requestAnimationFrame(fill);
  new ResizeObserver(fill).observe(host);
  show(rows);
  return show;
}

/** A table of `rows` that shows those whose `text(row)` holds what is typed. */
function searchable(rows, text, show) {
  const find = () => {
    const wanted = byId("find").value.toLowerCase();
    const found = wanted ? rows.filter(row => text(row).toLowerCase().includes(wanted)) : rows;
    byId("count").textContent = `${count(found.length)} of ${count(rows.length)}`;
    show(found);
  };
  let waiting = 0;
  byId("find").oninput = () => { clearTimeout(waiting); waiting = setTimeout(find, 120); };
  find();
}

/** The end of a page: what it is of, by whom and when it was made; everything drawn, and again when that changes. */
function finish(title, summary, draw) {
  byId("title").textContent = title;
  document.title = title + " \u2013 ckpt inspect";
  byId("summary").textContent = summary;
  byId("made").textContent = `Made by ${data.version} at ${data.made}.`;
  const all = () => { legend(); drawMap(); draw(); };
  crumbs();
  all();
  dark.addEventListener("change", all);
  new ResizeObserver(all).observe(map);
  document.documentElement.dataset.ready = String(drawn.length);
}
