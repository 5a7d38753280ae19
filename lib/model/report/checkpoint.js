const KEY = 0, DTYPE = 1, SHAPE = 2, BYTES = 3, SHARDS = 4, MIN = 5, MAX = 6, MEAN = 7, STD = 8, NANS = 9, INFS = 10, ZEROS = 11;
const shape = dims => dims.length ? dims.join("\u00d7") : "scalar";
const real = x => x === null ? "\u2013" : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(3) : String(+x.toPrecision(5));

/** The parts of a name, 64 at most. */
function partsOfKey(key) {
  const parts = key.split(".", 64);
  if (parts.join(".").length < key.length) parts[63] = key.slice(parts.slice(0, 63).join(".").length + 1);
  return parts;
}
showSizes(data.tensors.map(t => ({
  parts: partsOfKey(t[KEY]), kind: t[DTYPE], bytes: t[BYTES],
  text: `${t[KEY]}: ${t[DTYPE]} ${shape(t[SHAPE])}, ${size(t[BYTES])}, ${many(t[SHARDS], "shard")}`})), "tensor", ".");

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

searchable(tensors, t => t[KEY], found => { byId("tensorrows").scrollTop = 0; showTensors(found); });

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

function chartLegend(bad) {
  const marks = [swatch(css("--accent"), "dot: mean; bar: one standard deviation to either side; below: the number in the name")];
  if (bad) marks.push(swatch(css("--bad"), "holds NaN or infinities, which are not counted in"));
  byId("marks").replaceChildren(...marks);
}

function drawChart() {
  const [pen, width, height] = prepare(byId("chart")), family = families.get(byId("family").value) || [];
  const known = family.filter(t => t[MEAN] !== null);
  chartLegend(known.some(t => t[NANS] + t[INFS] > 0));
  if (!known.length) return;
  let low = known.reduce((least, t) => Math.min(least, t[MEAN] - t[STD]), Infinity), high = known.reduce((most, t) => Math.max(most, t[MEAN] + t[STD]), -Infinity);
  if (high === low) low -= 1, high += 1;
  pen.font = "12px system-ui, sans-serif";
  const left = 20 + Math.max(...[low, (low + high) / 2, high].map(value => pen.measureText(real(value)).width));
  const top = 14, bottom = height - 26, step = (width - left - 12) / family.length;
  const y = value => bottom - (value - low) / (high - low) * (bottom - top);
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
  byId("bad").textContent = bad.length ? `${many(bad.length, "tensor")} with NaN or infinities: ${bad.slice(0, 5).map(t => t[KEY]).join(", ")}${bad.length > 5 ? " \u2026" : ""}`
    : "No tensor holds NaN or infinities.";
  byId("bad").className = bad.length ? "bad" : "";
}

if (data.objects.length) {
  byId("objects").hidden = false;
  table(byId("objectrows"), [
    {name: "Name", width: "minmax(14rem, 3fr)", text: o => o[0]},
    {name: "Size", width: "7rem", number: true, text: o => size(o[1]), value: o => o[1]},
  ], data.objects, "24rem");
}
if (data.common) {
  byId("common").hidden = false;
  byId("commontext").textContent = data.common;
}

finish(data.path, `${data.format}: ${many(data.tensors.length, "tensor")}, ${size(total)}; ${many(data.objects.length, "object")}, ${many(data.files.length, "file")}`,
  () => { if (data.stats && tensors.length) drawChart(); });
