const PAGE = 4096;
const nameOf = p => `${p.pid} ${p.threads.length ? p.threads[0].name : ""}`.trim();
const duration = us => us >= 1e6 ? (us / 1e6).toPrecision(3) + " s" : us >= 1e3 ? (us / 1e3).toPrecision(3) + " ms" : count(us) + " \u00b5s";
/** The rows of all processes, each with its process. */
const all = member => data.processes.flatMap(p => p[member].map(row => ({...row, process: p})));

const mappings = all("maps"), descriptors = all("descriptors"), threads = all("threads");
showSizes(mappings.filter(m => m.pages_data > 0).map(m => ({
  parts: [nameOf(m.process), m.kind, m.name || "anonymous", m.start], kind: m.kind, bytes: m.pages_data * PAGE,
  text: `${nameOf(m.process)}, ${m.start}: ${m.name || "anonymous"}, ${m.kind}, ${m.prot}: ${size(m.pages_data * PAGE)} of ${size(m.bytes)} are in the image`})),
  "mapping", ">");

function facts() {
  const images = data.chain.length;
  const rows = [["Image", `${data.id}, ${data.image_kind}, captured at ${data.created}`],
    ["Host", `${data.host.hostname}, ${data.host.kernel} ${data.host.machine}, ${data.host.cpu}`],
    ["On disk", size(data.stored_bytes) + (images > 1 ? `, with parents ${size(data.chain_bytes)} in ${images} images` : "")],
    ["Frozen", duration(data.stats.frozen_us) + (data.stats.stops_us ? `, and ${duration(data.stats.stops_us)} in short stops beside it` : "")],
    ["Pre-copied", data.stats.rounds.map(r => `${size(r.pages * PAGE)} in ${duration(r.us)}`).join(", ") || "nothing"]];
  if (data.namespaces.length) rows.push(["Namespaces", data.namespaces.join(", ")]);
  if (data.gpu) rows.push(["GPU", `driver ${data.gpu.driver}: ${data.gpu.used.map(g => `${g.name}, ${size(g.bytes)}`).join("; ")}`]);
  byId("facts").replaceChildren(...rows.flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
}
facts();

const processColumn = {name: "Process", width: "minmax(7rem, 1fr)", text: row => nameOf(row.process)};
const inImage = p => p.maps.reduce((sum, m) => sum + m.pages_data, 0) * PAGE;

table(byId("processrows"), [
  {name: "PID", width: "5rem", number: true, text: p => String(p.pid), value: p => p.pid},
  {name: "Parent", width: "5rem", number: true, text: p => String(p.parent_pid), value: p => p.parent_pid},
  {name: "State", width: "5rem", text: p => p.zombie ? "zombie" : p.stopped ? "stopped" : ""},
  {name: "Threads", width: "5rem", number: true, text: p => count(p.threads.length), value: p => p.threads.length},
  {name: "Mappings", width: "6rem", number: true, text: p => count(p.maps.length), value: p => p.maps.length},
  {name: "Descriptors", width: "7rem", number: true, text: p => count(p.descriptors.length), value: p => p.descriptors.length},
  {name: "In the image", width: "7rem", number: true, text: p => size(inImage(p)), value: inImage},
  {name: "Command", width: "minmax(12rem, 3fr)", text: p => p.arguments.join(" ") || p.exe},
], data.processes, "60rem");

const phases = Object.entries(data.stats.phases_us), longest = phases.reduce((most, p) => Math.max(most, p[1]), 1);
table(byId("phaserows"), [
  {name: "Phase", width: "minmax(8rem, 1fr)", text: p => p[0].replaceAll("_", " ")},
  {name: "Time", width: "7rem", number: true, text: p => duration(p[1]), value: p => p[1]},
  {name: "", width: "minmax(8rem, 3fr)", text: () => "", value: p => p[1], bar: p => (p[1] / longest).toFixed(4)},
], phases, "30rem");

const showMappings = table(byId("maprows"), [
  processColumn,
  {name: "Address", width: "9rem", text: m => m.start},
  {name: "Size", width: "6rem", number: true, text: m => size(m.bytes), value: m => m.bytes},
  {name: "In the image", width: "7rem", number: true, text: m => size(m.pages_data * PAGE), value: m => m.pages_data},
  {name: "Zero", width: "6rem", number: true, text: m => size(m.pages_zero * PAGE), value: m => m.pages_zero},
  {name: "Protection", width: "6rem", text: m => m.prot},
  {name: "Kind", width: "8rem", text: m => m.kind},
  {name: "Name", width: "minmax(12rem, 3fr)", text: m => m.name},
], mappings, "66rem");
searchable(mappings, m => m.name, found => { byId("maprows").scrollTop = 0; showMappings(found); });

table(byId("fdrows"), [
  processColumn,
  {name: "FD", width: "8rem", text: d => d.fds.join(" ")},
  {name: "Kind", width: "8rem", text: d => d.kind},
  {name: "Offset", width: "7rem", number: true, text: d => count(d.offset), value: d => d.offset},
  {name: "What", width: "minmax(14rem, 3fr)", text: d => d.what},
], descriptors, "48rem");

table(byId("threadrows"), [
  processColumn,
  {name: "TID", width: "6rem", number: true, text: t => String(t.tid), value: t => t.tid},
  {name: "Name", width: "minmax(8rem, 1fr)", text: t => t.name},
  {name: "Instruction", width: "10rem", text: t => t.rip},
  {name: "Nice", width: "5rem", number: true, text: t => String(t.nice), value: t => t.nice},
  {name: "Pending signals", width: "9rem", number: true, text: t => count(t.pending_signals), value: t => t.pending_signals},
], threads, "46rem");

finish(data.path, `${many(data.processes.length, "process").replace(/sss$|processs$/, "processes")}, ${many(threads.length, "thread")}, ${many(mappings.length, "mapping")}, ${
  many(descriptors.length, "descriptor")}; ${size(total)} of memory`, () => {});
