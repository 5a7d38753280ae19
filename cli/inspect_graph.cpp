// `ckpt inspect IMAGE --graph`: which launches make device memory again, of what, in the language of Graphviz.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "cli/inspect_image.h"
#include "cli/plural.h"
#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

using namespace ckpt::store;

/// In double quotes, as the language wants it: what ends the quotes or begins one of its escapes is escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : escape_for_terminal(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class Graph {
 public:
  explicit Graph(const DeviceMemory& memory) : memory_(memory) {}

  std::string text(const std::string& title) {
    out_ = fmt::format("  subgraph cluster_{} {{\n    label={};\n", memory_.process, quoted(title));
    for (const DeviceAllocation& allocation : memory_.allocations) add(allocation);
    for (const DeviceLaunch& launch : memory_.launches) add(launch);
    return out_ + "  }\n";
  }

  /// Launches of which the image does not say what they touch: none that is run again touches nothing.
  size_t without_edges() const {
    return static_cast<size_t>(std::count_if(memory_.launches.begin(), memory_.launches.end(), [](const auto& launch) {
      return launch.reads.empty() && launch.writes.empty();
    }));
  }

 private:
  std::string node(const DeviceAllocation& allocation) const {
    return fmt::format("memory_{}_{}", memory_.process, allocation.id);
  }

  void add(const DeviceAllocation& allocation) {
    uint64_t chunks = 0;
    for (const DeviceRun& run : allocation.recomputed) chunks += run.count;
    const std::string title = fmt::format("{:#x}, {}: {} stored, {} made again", allocation.address,
                                          human_bytes(allocation.size),
                                          human_bytes(allocation.size - chunks * kBlockSize),
                                          human_bytes(chunks * kBlockSize));
    out_ += fmt::format("    {} [shape=box, label={}];\n", node(allocation), quoted(title));
  }

  void add(const DeviceLaunch& launch) {
    const std::string id = fmt::format("launch_{}_{}", memory_.process, launch.sequence);
    const std::string name = launch.name.empty() ? "" : " " + launch.name;
    out_ += fmt::format("    {} [shape=ellipse, label={}];\n", id, quoted(fmt::format("#{}{}", launch.sequence, name)));
    for (const std::string& from : touched(launch.reads)) out_ += fmt::format("    {} -> {};\n", from, id);
    for (const std::string& to : touched(launch.writes)) out_ += fmt::format("    {} -> {};\n", id, to);
  }

  /// The allocations that the ranges are in; memory that is not ckpt's to copy is left out.
  std::set<std::string> touched(const std::vector<DeviceRange>& ranges) const {
    std::set<std::string> out;
    const std::vector<DeviceAllocation>& all = memory_.allocations;  // in order, and apart
    for (const DeviceRange& range : ranges) {
      auto a = std::upper_bound(all.begin(), all.end(), range.address,
                                [](uint64_t at, const DeviceAllocation& one) { return at < one.address; });
      const auto before = a == all.begin() ? a : std::prev(a);
      if (before != a && range.address - before->address < before->size) out.insert(node(*before));
      for (; a != all.end() && a->address - range.address < range.size; ++a) out.insert(node(*a));
    }
    return out;
  }

  const DeviceMemory& memory_;
  std::string out_;
};

}  // namespace

Result<void> inspect_device_graph(Context& context, const std::filesystem::path& dir) {
  CKPT_TRY_ASSIGN(const Manifest manifest, read_manifest(dir));
  if (manifest.tree.devices.empty())
    return fail(Code::kUsage, dir.string(), "has no device memory that ckpt copied: there is no graph of it");
  size_t launches = 0, without_edges = 0;
  std::string out = "digraph device_memory {\n  rankdir=LR;\n";
  for (const DeviceMemory& memory : manifest.tree.devices) {
    launches += memory.launches.size();
    const ProcessImage& process = manifest.tree.processes[static_cast<size_t>(memory.process)];
    Graph graph(memory);
    out += graph.text(fmt::format("process {} ({})", process.pid, process.threads[0].comm));
    without_edges += graph.without_edges();
  }
  context.out.data(out + "}\n");
  context.out.info(launches == 0 ? "all of its device memory is stored as bytes: no launch makes any of it again"
                                 : counted(launches, "launch", "launches") + " would make device memory again");
  if (without_edges != 0)
    context.out.info(counted(without_edges, "launch is", "launches are") +
                     " drawn without what they touch: the image has no room for more");
  return {};
}

}  // namespace ckpt::cli
