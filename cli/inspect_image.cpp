#include "cli/inspect_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/app.h"
#include "cli/inspect_html.h"
#include "cli/plural.h"
#include "cli/stats_text.h"
#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/model/report/page.h"
#include "lib/state/descriptors/show.h"
#include "lib/state/files/show.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/namespaces/show.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

using Json = nlohmann::ordered_json;
using namespace store;

std::string to_text(const Json& doc) { return lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)); }

struct PageCounts {
  uint64_t data = 0, zero = 0;
};

/// Pages that the image has in [start, end).
PageCounts count_pages(const std::vector<ImageReader::ResolvedBlock>& blocks, uint64_t start, uint64_t end) {
  PageCounts out;
  auto it = std::partition_point(blocks.begin(), blocks.end(),
                                 [&](const auto& b) { return b.address + kBlockSize <= start; });
  for (; it != blocks.end() && it->address < end; ++it) {
    unsigned inside = 0xffff;
    if (it->address < start) inside &= 0xffffu << ((start - it->address) / kPageSize);
    if (it->address + kBlockSize > end) inside &= 0xffffu >> ((it->address + kBlockSize - end) / kPageSize);
    out.data += static_cast<uint64_t>(__builtin_popcount(it->data_mask & inside));
    out.zero += static_cast<uint64_t>(__builtin_popcount(it->zero_mask & inside));
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

const char* mapping_kind(MappingKind kind) {
  switch (kind) {
    case MappingKind::kAnonymous: return "anonymous";
    case MappingKind::kPrivateFile: return "private file";
    case MappingKind::kSharedFile: return "shared file";
    case MappingKind::kSharedMemory: return "shared";
    case MappingKind::kDroppable: return "droppable";
    case MappingKind::kIoUring: return "io_uring";
    case MappingKind::kHugePages: return "huge pages";
    case MappingKind::kAio: return "AIO context";
    case MappingKind::kVdso: return "vdso";
  }
  return "";
}

std::string protection(int prot) {
  return std::string(1, (prot & 1) != 0 ? 'r' : '-') + ((prot & 2) != 0 ? 'w' : '-') + ((prot & 4) != 0 ? 'x' : '-');
}

std::string file_path(const TreeImage& tree, int index) {
  return index < 0 ? "" : state::show(tree.files[static_cast<size_t>(index)]);
}

/// In the table of one process.
std::vector<int> numbers_in(const Descriptor& d, int process) {
  std::vector<int> out;
  for (const FdSlot& slot : d.fds) {
    if (slot.process == process) out.push_back(slot.fd);
  }
  return out;
}

const char* access_mode(int flags) {
  static const char* kModes[] = {"read", "write", "read write", ""};
  return kModes[flags & 3];
}

constexpr size_t kRip = 16;

/// "driver 580.95.05, CUDA 13.0; 2.0 MiB of GPU-8a0c...; 32 GiB in 2 allocations copied by ckpt"
std::string gpu_state(const TreeImage& tree) {
  std::string out = tree.gpu.driver;
  for (const GpuUse& use : tree.gpu.used)
    out += fmt::format("; {} of {} ({})", human_bytes(use.bytes), use.uuid, use.name);
  uint64_t count = 0, bytes = 0;
  for (const DeviceMemory& memory : tree.devices) {
    for (const DeviceAllocation& allocation : memory.allocations) ++count, bytes += allocation.size;
  }
  return count == 0 ? out
                    : out + fmt::format("; {} in {} copied by ckpt", human_bytes(bytes), counted(count, "allocation"));
}

Json gpu_json(const TreeImage& tree) {
  Json used = Json::array(), memory = Json::array();
  for (const GpuUse& use : tree.gpu.used)
    used.push_back({{"uuid", use.uuid}, {"name", use.name}, {"bytes", use.bytes}});
  for (const DeviceMemory& of : tree.devices) {
    for (const DeviceAllocation& allocation : of.allocations) {
      memory.push_back({{"pid", tree.processes[static_cast<size_t>(of.process)].pid},
                        {"address", fmt::format("{:#x}", allocation.address)},
                        {"bytes", allocation.size},
                        {"uuid", allocation.uuid}});
    }
  }
  return {{"driver", tree.gpu.driver}, {"used", used}, {"memory", memory}};
}

void print_summary(Console& out, const ImageReader& reader) {
  const Manifest& m = reader.manifest();
  const ProcessImage& p = m.tree.root();
  size_t threads = 0, maps = 0;
  for (const ProcessImage& process : m.tree.processes) threads += process.threads.size(), maps += process.maps.size();
  std::string on_disk = human_bytes(reader.stored_bytes());
  std::string parent = "none";
  if (!m.parent_path.empty()) {
    parent = fmt::format("{} ({} images in the chain)", m.parent_path, reader.chain().size());
    on_disk += ", with parents " + human_bytes(reader.chain_bytes());
  }
  PageCounts pages = count_pages(reader.blocks(), 0, ~uint64_t{0});
  std::vector<std::vector<std::string>> rows = {
      {"image", reader.path().string()},
      {"id", m.id},
      {"kind", m.kind + ", " + m.created},
      {"process", fmt::format("{}: {}", p.pid, joined(p.arguments))},
      {"processes", fmt::format("{}, with {}", m.tree.processes.size(), counted(threads, "thread"))},
      {"host", fmt::format("{}, {} {}, {}", m.host.hostname, m.host.kernel, m.host.machine, m.host.cpu_model)},
      {"parent", parent},
      {"memory", fmt::format("{} in {} mappings; {} pages with content, {} zero", human_bytes(pages.data * kPageSize),
                             maps, pages.data, pages.zero)},
      {"on disk", on_disk},
      {"frozen", frozen_text(m.stats)},
      {"pre-copied", rounds_text(m.stats)},
      {"phases", phases_text(m.stats)},
      {"pages", fmt::format("{} scanned, {} copied, {} zero, {} unchanged", m.stats.pages_scanned, m.stats.pages_copied,
                            m.stats.pages_zero, m.stats.pages_unchanged)}};
  if (const std::string own = state::show(m.tree.namespaces); !own.empty())
    rows.insert(rows.end() - 3, {"namespaces", own});
  if (!m.tree.gpu.driver.empty()) rows.insert(rows.end() - 3, {{"gpu", gpu_state(m.tree)}, {"", gpu_text(m.stats)}});
  out.table({}, rows);
}

/// Of the address space of process `index`, or that of the one it shares it with.
PageCounts pages_of(const ImageReader& reader, const ProcessImage& process, const MemoryMap& map) {
  const uint64_t base = space_base(process.space);
  return count_pages(reader.blocks(), base + map.start, base + map.end);
}

std::string shared_with(const TreeImage& tree, const ProcessImage& p) {
  std::vector<std::string> out;
  auto note = [&](int owner, const char* what) {
    if (owner >= 0) out.push_back(fmt::format("{} of {}", what, tree.processes[static_cast<size_t>(owner)].pid));
  };
  note(p.memory_of, "memory"), note(p.descriptors_of, "descriptors"), note(p.fs_of, "folders"),
      note(p.sighand_of, "handlers");
  std::string text;
  for (const std::string& part : out) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string state_of(const ProcessImage& p) {
  if (p.zombie) return fmt::format("zombie, status {:#x}", p.exit_status);
  return p.stopped ? "stopped" : "";
}

/// How far below the first process one is.
size_t depth_of(const TreeImage& tree, const ProcessImage& process) {
  size_t depth = 0;
  for (const ProcessImage* at = &process; at != &tree.processes[0] && depth < tree.processes.size(); ++depth) {
    auto parent = std::find_if(tree.processes.begin(), tree.processes.end(),
                               [&](const ProcessImage& p) { return p.pid == at->parent_pid; });
    if (parent == tree.processes.end()) break;
    at = &*parent;
  }
  return depth;
}

void print_tree(Console& out, const TreeImage& tree) {
  std::vector<std::vector<std::string>> rows;
  for (const ProcessImage& p : tree.processes) {
    std::string state = state_of(p), shares = shared_with(tree, p);
    rows.push_back({state::numbers_in_words(p.threads[0]), std::to_string(p.parent_pid), std::to_string(p.group),
                    std::to_string(p.session), std::to_string(p.threads.size()),
                    std::string(2 * depth_of(tree, p), ' ') + p.threads[0].comm,
                    state + (state.empty() || shares.empty() ? "" : ", ") + shares});
  }
  out.data("\n");
  out.table({"PID", "PARENT", "GROUP", "SESSION", "THREADS", "NAME", "STATE"}, rows, {0, 1, 2, 3, 4});
}

void print_maps(Console& out, const ImageReader& reader, const ProcessImage& p) {
  std::vector<std::vector<std::string>> rows;
  for (const MemoryMap& map : p.maps) {
    PageCounts pages = pages_of(reader, p, map);
    rows.push_back({fmt::format("{:x}-{:x}", map.start, map.end), human_bytes(map.end - map.start),
                    protection(map.prot), mapping_kind(map.kind), std::to_string(pages.data),
                    std::to_string(pages.zero), map.name});
  }
  out.table({"MAPPING", "SIZE", "PROT", "KIND", "PAGES", "ZERO", "NAME"}, rows, {0, 1, 4, 5});
}

void print_descriptors(Console& out, const TreeImage& tree, size_t index) {
  std::vector<std::vector<std::string>> rows;
  for (const Descriptor& d : tree.descriptors) {
    std::string numbers;
    for (int fd : numbers_in(d, static_cast<int>(index))) numbers += (numbers.empty() ? "" : " ") + std::to_string(fd);
    if (numbers.empty()) continue;
    rows.push_back(
        {numbers, facts_of(d.kind).label, access_mode(d.flags), std::to_string(d.offset), state::show(tree, d)});
  }
  out.table({"FD", "KIND", "MODE", "OFFSET", "WHAT"}, rows, {3});
}

void print_threads(Console& out, const ProcessImage& p) {
  std::vector<std::vector<std::string>> rows;
  for (const Thread& t : p.threads) {
    rows.push_back({std::to_string(t.tid), t.comm, fmt::format("{:x}", t.regs.value[kRip]), std::to_string(t.nice),
                    std::to_string(t.pending.size())});
  }
  out.table({"TID", "NAME", "RIP", "NICE", "PENDING"}, rows, {0, 3, 4});
}

/// "12 worker, 1 main", the most frequent first.
std::string counted_names(const std::map<std::string, size_t>& names) {
  std::vector<std::pair<std::string, size_t>> sorted(names.begin(), names.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (const auto& [name, count] : sorted) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, name);
  return out.empty() ? "none" : out;
}

/// A line for each kind of mapping: its sizes, and what of it the image has.
void add_memory(const ImageReader& reader, const ProcessImage& p, std::vector<std::vector<std::string>>& rows) {
  struct Sum {
    uint64_t bytes = 0, mappings = 0, pages = 0;
    std::set<std::string> files;
  };
  std::map<std::string, Sum> kinds;
  for (const MemoryMap& map : p.maps) {
    Sum& sum = kinds[mapping_kind(map.kind)];
    sum.bytes += map.end - map.start, ++sum.mappings, sum.pages += pages_of(reader, p, map).data;
    if (map.name.starts_with('/')) sum.files.insert(map.name);
  }
  for (const auto& [kind, sum] : kinds) {
    const std::string files = sum.files.empty() ? "" : " of " + counted(sum.files.size(), "file");
    rows.push_back({kind, fmt::format("{} in {}{}; {} in the image", human_bytes(sum.bytes),
                                      counted(sum.mappings, "mapping"), files, human_bytes(sum.pages * kPageSize))});
  }
}

void print_process_summary(Console& out, const ImageReader& reader, size_t index) {
  const TreeImage& tree = reader.manifest().tree;
  const ProcessImage& p = tree.processes[index];
  std::map<std::string, size_t> descriptors, threads;
  for (const Descriptor& d : tree.descriptors) {
    if (!numbers_in(d, static_cast<int>(index)).empty()) ++descriptors[facts_of(d.kind).label];
  }
  for (const Thread& thread : p.threads) ++threads[thread.comm];
  std::vector<std::vector<std::string>> rows;
  add_memory(reader, p, rows);
  rows.push_back({"descriptors", counted_names(descriptors)});
  rows.push_back({"threads", counted_names(threads)});
  out.table({}, rows);
}

void print_process(Console& out, const ImageReader& reader, size_t index, const ImageViews& views) {
  const TreeImage& tree = reader.manifest().tree;
  const ProcessImage& p = tree.processes[index];
  if (tree.processes.size() > 1)
    out.data(fmt::format("\nprocess {} ({})\n", p.pid, escape_for_terminal(p.threads[0].comm)));
  auto part = [&](bool wanted, auto print) {
    if (!wanted) return;
    out.data("\n");
    print();
  };
  part(!views.any(), [&] { print_process_summary(out, reader, index); });
  part(views.maps, [&] { print_maps(out, reader, p); });
  part(views.descriptors, [&] { print_descriptors(out, tree, index); });
  part(views.threads, [&] { print_threads(out, p); });
}

void print_tables(Console& out, const ImageReader& reader, const ImageViews& views) {
  const TreeImage& tree = reader.manifest().tree;
  if (tree.processes.size() > 1) print_tree(out, tree);
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    if (!tree.processes[i].zombie) print_process(out, reader, i, views);
  }
}

Json process_json(const ImageReader& reader, size_t index) {
  const TreeImage& tree = reader.manifest().tree;
  const ProcessImage& p = tree.processes[index];
  Json maps = Json::array(), descriptors = Json::array(), threads = Json::array();
  for (const MemoryMap& map : p.maps) {
    PageCounts pages = pages_of(reader, p, map);
    maps.push_back({{"start", fmt::format("{:#x}", map.start)}, {"end", fmt::format("{:#x}", map.end)},
                    {"prot", protection(map.prot)}, {"kind", mapping_kind(map.kind)}, {"name", map.name},
                    {"bytes", map.end - map.start}, {"pages_data", pages.data}, {"pages_zero", pages.zero}});
  }
  for (const Descriptor& d : tree.descriptors) {
    std::vector<int> fds = numbers_in(d, static_cast<int>(index));
    if (fds.empty()) continue;
    descriptors.push_back({{"fds", fds}, {"kind", facts_of(d.kind).label}, {"flags", d.flags}, {"offset", d.offset},
                           {"what", state::show(tree, d)}});
  }
  for (const Thread& t : p.threads) {
    threads.push_back({{"tid", t.tid},
                       {"inner_tids", t.inner_tids},
                       {"name", t.comm},
                       {"rip", fmt::format("{:#x}", t.regs.value[kRip])},
                       {"nice", t.nice},
                       {"pending_signals", t.pending.size()}});
  }
  return {{"pid", p.pid},   {"parent_pid", p.parent_pid}, {"group", p.group}, {"session", p.session},
          {"zombie", p.zombie}, {"stopped", p.stopped}, {"arguments", p.arguments}, {"exe", file_path(tree, p.exe)},
          {"cwd", file_path(tree, p.cwd)}, {"threads", threads}, {"maps", maps}, {"descriptors", descriptors}};
}

/// The first process is given alone, too: most images have no other.
Json processes_json(const ImageReader& reader) {
  Json out = Json::array();
  for (size_t i = 0; i < reader.manifest().tree.processes.size(); ++i) out.push_back(process_json(reader, i));
  return out;
}

Json inspect_json(const ImageReader& reader) {
  const Manifest& m = reader.manifest();
  Json chain = Json::array();
  for (const Manifest* image : reader.chain()) {
    uint64_t bytes = 0;
    for (const StoredFile& file : image->files) bytes += file.size;
    chain.push_back({{"id", image->id}, {"image_kind", image->kind}, {"created", image->created}, {"bytes", bytes},
                     {"parent_path", image->parent_path}});
  }
  PageCounts pages = count_pages(reader.blocks(), 0, ~uint64_t{0});
  return {{"schema", "ckpt.inspect/1"},
          {"kind", "process"},
          {"path", reader.path().string()},
          {"id", m.id},
          {"image_kind", m.kind},
          {"created", m.created},
          {"host",
           {{"hostname", m.host.hostname},
            {"kernel", m.host.kernel},
            {"machine", m.host.machine},
            {"cpu", m.host.cpu_model}}},
          {"chain", chain},
          {"stored_bytes", reader.stored_bytes()},
          {"chain_bytes", reader.chain_bytes()},
          {"pages_data", pages.data},
          {"pages_zero", pages.zero},
          {"stats", Json::parse(stats_json(m.stats))},
          {"namespaces", m.tree.namespaces.own},
          {"gpu", m.tree.gpu.driver.empty() ? Json() : gpu_json(m.tree)},
          {"process", process_json(reader, 0)},
          {"processes", processes_json(reader)}};
}

}  // namespace

Result<void> inspect_image(Context& context, const std::filesystem::path& dir, const ImageViews& views) {
  CKPT_TRY_ASSIGN(std::unique_ptr<ImageReader> reader, ImageReader::open(dir));
  if (context.out.json()) {
    context.out.data(to_text(inspect_json(*reader)));
    return {};
  }
  print_summary(context.out, *reader);
  print_tables(context.out, *reader, views);
  return {};
}

Result<void> write_image_page(Context& context, const std::filesystem::path& dir, const std::string& target) {
  CKPT_TRY_ASSIGN(std::unique_ptr<ImageReader> reader, ImageReader::open(dir));
  Json doc = inspect_json(*reader);
  doc["made"] = rfc3339_now();
  doc["version"] = short_version();
  const std::string text = model::escape_for_page(to_text(doc));
  return put_page(context.out, target, [&](const model::PageSink& write) {
    return model::write_page(model::kImagePage, write, [&](const model::PageSink& sink) { return sink(text); });
  });
}

Result<void> load_image_metadata(Context& context, const std::filesystem::path& dir) {
  CKPT_TRY_ASSIGN(Manifest manifest, read_manifest(dir));
  Json doc = {{"schema", "ckpt.load-metadata/1"}, {"kind", "process"}, {"path", dir.string()}};
  doc["manifest"] = Json::parse(to_json(manifest));
  context.out.data(to_text(doc));
  return {};
}

}  // namespace ckpt::cli
