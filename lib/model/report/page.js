"use strict";
// Names come from strangers: they reach the page through textContent and canvas text only.
const data = JSON.parse(document.getElementById("data").textContent);
const KEY = 0, DTYPE = 1, SHAPE = 2, BYTES = 3, SHARDS = 4, MIN = 5, MAX = 6, MEAN = 7, STD = 8, NANS = 9, INFS = 10, ZEROS = 11;
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
const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const shape = dims => dims.length ? dims.join("\u00d7") : "scalar";
const real = x => x === null ? "\u2013" : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(3) : String(+x.toPrecision(5));
const natural = new Intl.Collator("en", {numeric: true}).compare;

// ---- colours of dtypes -------------------------------------------------------------------------------------------

const dtypes = new Map();
for (const t of data.tensors) {
  const sum = dtypes.get(t[DTYPE]) || {bytes: 0, tensors: 0};
  sum.bytes += t[BYTES];
  ++sum.tensors;
  dtypes.set(t[DTYPE], sum);
}
const byBytes = [...dtypes].sort((a, b) => b[1].bytes - a[1].bytes);
const total = data.tensors.reduce((sum, t) => sum + t[BYTES], 0);
// Hues that people with any colour vision tell apart (Okabe and Ito's), told by their names in the legend as well.
const HUES = [211, 32, 164, 327, 50, 196, 18, 264, 90, 345];
const hueOf = new Map(byBytes.map(([name], i) => [name, HUES[i % HUES.length]]));
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (dtype, raised) => `hsl(${hueOf.get(dtype)} 45% ${(dark.matches ? 32 : 72) + (raised ? 8 : 0)}%)`;

function legend() {
  byId("dtypes").replaceChildren(...byBytes.map(([name, sum]) => {
    const item = element("li"), swatch = element("span", undefined, "swatch");
    swatch.style.background = colour(name, false);
    item.append(swatch, `${name}: ${size(sum.bytes)}, ${many(sum.tensors, "tensor")}`);
    return item;
  }));
}

// ---- names as a tree ---------------------------------------------------------------------------------------------

function treeOf(tensors) {
  const root = {name: "", path: "", up: null, bytes: 0, tensors: 0, parts: new Map(), tensor: null};
  for (const t of tensors) {
    const parts = t[KEY].split(".", 64);
    if (parts.join(".").length < t[KEY].length) parts[63] = t[KEY].slice(parts.slice(0, 63).join(".").length + 1);
    let node = root;
    node.bytes += t[BYTES];
    ++node.tensors;
    for (const part of parts) {
      let below = node.parts.get(part);
      if (!below) {
        below = {name: part, path: node.up ? node.path + "." + part : part, up: node, bytes: 0, tensors: 0, parts: new Map(), tensor: null};
        node.parts.set(part, below);
      }
      node = below;
      node.bytes += t[BYTES];
      ++node.tensors;
    }
    node.tensor = t;
  }
  return root;
}

/** What is drawn below a node, greatest first; a tensor whose name goes on in others stands among them. */
function partsOf(node) {
  if (!node.sorted) {
    node.sorted = [...node.parts.values()];
    if (node.tensor && node.sorted.length) {
      node.sorted.push({name: node.name, path: node.path, up: node, bytes: node.tensor[BYTES], tensors: 1, parts: new Map(), tensor: node.tensor});
    }
    // A part with nothing beside it is one with what it holds.
    node.sorted = node.sorted.map(part => {
      let name = part.name;
      while (part.parts.size === 1 && !part.tensor) {
        part = part.parts.values().next().value;
        name += "." + part.name;
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
const root = treeOf(data.tensors);
let here = root, drawn = [], pointed = null;

function prepare(canvas) {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, box.width, box.height];
}

/** The dtype that most bytes below a node have: what a part too small to be opened is painted with. */
function mainDtype(node) {
  while (!node.tensor && node.parts.size) node = partsOf(node)[0];
  return node.tensor ? node.tensor[DTYPE] : byBytes[0][0];
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
    pen.fillStyle = leaf ? colour(mainDtype(node), node === pointed) : soft;
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
    return i ? [" . ", button] : [button];
  }), ` \u2013 ${size(here.bytes)}, ${many(here.tensors, "tensor")}`);
}

function go(node) {
  while (node !== root && node.parts.size === 1 && !node.tensor) node = node.parts.values().next().value;
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
  const t = node && !node.parts.size && node.tensor;
  byId("under").textContent = !node ? "" : t ? `${t[KEY]}: ${t[DTYPE]} ${shape(t[SHAPE])}, ${size(t[BYTES])}, ${many(t[SHARDS], "shard")}`
    : `${node.path}: ${size(node.bytes)} (${(100 * node.bytes / (total || 1)).toFixed(1)} %), ${many(node.tensors, "tensor")}`;
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

const tensorColumns = [
  {name: "Name", width: "minmax(16rem, 3fr)", text: t => t[KEY]},
  {name: "Type", width: "7.5rem", text: t => t[DTYPE]},
  {name: "Shape", width: "minmax(6rem, 1fr)", text: t => shape(t[SHAPE])},
  {name: "Size", width: "6rem", number: true, text: t => size(t[BYTES]), value: t => t[BYTES]},
  {name: "Shards", width: "5rem", number: true, text: t => count(t[SHARDS]), value: t => t[SHARDS]},
];
if (data.stats) {
  for (const [name, i] of [["Min", MIN], ["Max", MAX], ["Mean", MEAN], ["Std", STD]]) {
    tensorColumns.push({name, width: "5.7rem", number: true, text: t => real(t[i]), value: t => t[i]});
  }
  for (const [name, i] of [["NaN", NANS], ["Inf", INFS], ["Zeros", ZEROS]]) {
    tensorColumns.push({name, width: "4.2rem", number: true, text: t => count(t[i]), value: t => t[i], bad: t => i !== ZEROS && t[i] > 0});
  }
}
const tensors = [...data.tensors].sort((a, b) => natural(a[KEY], b[KEY]));
const showTensors = table(byId("tensorrows"), tensorColumns, tensors, data.stats ? "74rem" : "44rem");

function find() {
  const wanted = byId("find").value.toLowerCase();
  const found = wanted ? tensors.filter(t => t[KEY].toLowerCase().includes(wanted)) : tensors;
  byId("count").textContent = `${count(found.length)} of ${count(tensors.length)}`;
  byId("tensorrows").scrollTop = 0;
  showTensors(found);
}
let waiting = 0;
byId("find").oninput = () => { clearTimeout(waiting); waiting = setTimeout(find, 120); };

const largest = data.files.reduce((most, f) => Math.max(most, f[1]), 1);
table(byId("filerows"), [
  {name: "File", width: "minmax(12rem, 2fr)", text: f => f[0]},
  {name: "Size", width: "7rem", number: true, text: f => f[5] ? "missing" : size(f[1]), value: f => f[1], bad: f => f[5]},
  {name: "Balance", width: "minmax(8rem, 1.5fr)", text: () => "", value: f => f[1], bar: f => (f[1] / largest).toFixed(4)},
  {name: "Tensors", width: "6rem", number: true, text: f => count(f[3]), value: f => f[3]},
  {name: "Shards", width: "6rem", number: true, text: f => count(f[4]), value: f => f[4]},
  {name: "Referred to", width: "7rem", number: true, text: f => size(f[2]), value: f => f[2]},
  {name: "Other", width: "7rem", number: true, text: f => size(Math.max(0, f[1] - f[2])), value: f => f[1] - f[2]},
], data.files, "52rem");

if (data.diff) {
  byId("diff").hidden = false;
  byId("verdict").textContent = `Against ${data.diff.other}: ${data.diff.equal ? "equal" : count(data.diff.rows.length) + " different"}, ${many(data.diff.compared, "tensor")} in both.`;
  if (data.diff.equal) byId("diffrows").hidden = true;
  else {
    table(byId("diffrows"), [
      {name: "Name", width: "minmax(14rem, 3fr)", text: d => d[0]},
      {name: "Different in", width: "9rem", text: d => d[1]},
      {name: "", width: "minmax(10rem, 2fr)", text: d => d[2]},
      {name: "Elements", width: "11rem", number: true, text: d => d[3] ? `${count(d[3])} of ${count(d[4])}` : "", value: d => d[3]},
      {name: "Max abs", width: "8rem", number: true, text: d => d[3] ? d[5] === null ? "NaN" : real(d[5]) : "", value: d => d[5]},
    ], data.diff.rows, "56rem");
  }
}

// ---- statistics: tensors that differ in one number of their name, side by side ------------------------------------------

const families = new Map();
if (data.stats) {
  for (const t of tensors) {
    const name = t[KEY].replace(/(^|\.)\d+(?=\.|$)/, "$1*");
    if (!families.has(name)) families.set(name, []);
    families.get(name).push(t);
  }
}

function drawChart() {
  const [pen, width, height] = prepare(byId("chart")), family = families.get(byId("family").value) || [];
  const known = family.filter(t => t[MEAN] !== null);
  if (!known.length) return;
  let low = known.reduce((least, t) => Math.min(least, t[MEAN] - t[STD]), Infinity), high = known.reduce((most, t) => Math.max(most, t[MEAN] + t[STD]), -Infinity);
  if (high === low) low -= 1, high += 1;
  const left = 76, top = 14, bottom = height - 26, step = (width - left - 12) / family.length;
  const y = value => bottom - (value - low) / (high - low) * (bottom - top);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const value of [low, (low + high) / 2, high]) {
    pen.strokeStyle = css("--line");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(left, y(value));
    pen.lineTo(width - 12, y(value));
    pen.stroke();
    pen.fillStyle = css("--soft");
    pen.fillText(real(value), left - 8, y(value));
  }
  pen.textAlign = "center";
  let free = 0;
  family.forEach((t, i) => {
    const x = left + (i + .5) * step, bad = t[NANS] + t[INFS] > 0;
    if (t[MEAN] !== null) {
      pen.strokeStyle = pen.fillStyle = bad ? css("--bad") : css("--accent");
      pen.lineWidth = Math.min(8, Math.max(1, step * .5));
      pen.globalAlpha = .35;
      pen.beginPath();
      pen.moveTo(x, y(t[MEAN] - t[STD]));
      pen.lineTo(x, y(t[MEAN] + t[STD]));
      pen.stroke();
      pen.globalAlpha = 1;
      pen.beginPath();
      pen.arc(x, y(t[MEAN]), 3, 0, 7);
      pen.fill();
    }
    const number = (t[KEY].match(/(?:^|\.)(\d+)(?=\.|$)/) || [])[1];
    const half = number === undefined ? 0 : pen.measureText(number).width / 2;
    if (number !== undefined && x - half > free) {
      pen.fillStyle = css("--soft");
      pen.fillText(number, x, height - 10);
      free = x + half + 8;
    }
  });
}

if (data.stats && tensors.length) {
  byId("layers").hidden = false;
  const weight = list => list.reduce((sum, t) => sum + t[BYTES], 0);
  const ranked = [...families].sort((a, b) => b[1].length - a[1].length || weight(b[1]) - weight(a[1])).slice(0, 500);
  byId("family").append(...ranked.map(([name, list]) => {
    const option = element("option", `${name} (${list.length})`);
    option.value = name;
    return option;
  }));
  byId("family").onchange = drawChart;
  const bad = tensors.filter(t => t[NANS] + t[INFS] > 0);
  byId("bad").textContent = bad.length ? `${count(bad.length)} tensors hold NaN or infinities: ${bad.slice(0, 5).map(t => t[KEY]).join(", ")}${bad.length > 5 ? " \u2026" : ""}`
    : "No tensor holds NaN or infinities.";
  byId("bad").className = bad.length ? "bad" : "";
}

// ---- the whole -------------------------------------------------------------------------------------------------------

byId("title").textContent = data.path;
document.title = data.path + " \u2013 ckpt inspect";
byId("summary").textContent = `${data.format}: ${many(data.tensors.length, "tensor")}, ${size(total)}; ${many(data.objects, "object")}, ${many(data.files.length, "file")}`;

function draw() {
  legend();
  drawMap();
  if (data.stats && tensors.length) drawChart();
}
find();
crumbs();
draw();
dark.addEventListener("change", draw);
new ResizeObserver(draw).observe(map);
document.documentElement.dataset.ready = String(drawn.length);
