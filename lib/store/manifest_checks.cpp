// What holds between the members of a manifest.
#include "lib/base/hex.h"
#include "lib/store/manifest_checks.h"

#include <fmt/format.h>

#include <string_view>

namespace ckpt::store {

namespace {

/// The first fault found; later ones are not noted. `place` makes the name of where it is, at a fault only.
class Faults {
 public:
  template <class F>
  void note(const F& place, std::string_view text) {
    if (none()) first_ = place() + std::string(text);
  }
  template <class F>
  void index(const F& place, std::string_view member, int index, size_t size) {
    if (index >= -1 && (index < 0 || static_cast<size_t>(index) < size)) return;
    note(place, std::string(member) + ": refers to an entry that is not there");
  }
  bool none() const { return first_.empty(); }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

template <class F>
void check_maps(const TreeImage& tree, const ProcessImage& p, const F& where, Faults& faults) {
  uint64_t end = 0;
  for (size_t i = 0; i < p.maps.size() && faults.none(); ++i) {
    const MemoryMap& m = p.maps[i];
    auto place = [&] { return fmt::format("{}.maps[{}]", where(), i); };
    faults.index(place, ".file", m.file, tree.files.size());
    faults.index(place, ".shared_memory", m.shared_memory, tree.shared_memory.size());
    if (m.start % kPageSize != 0 || m.end % kPageSize != 0) faults.note(place, ": is not made of whole pages");
    if (m.start >= m.end || m.start < end) faults.note(place, ": is empty, overlaps the one before or is out of order");
    end = m.end;
    for (const auto& guard : m.guards) {
      if (guard.first >= guard.second || guard.first < m.start || guard.second > m.end)
        faults.note(place, ".guards: lie outside it");
    }
  }
}

void check_process(const TreeImage& tree, size_t number, Faults& faults) {
  const ProcessImage& p = tree.processes[number];
  auto where = [&] { return fmt::format("tree.processes[{}]", number); };
  if (p.threads.empty()) faults.note(where, ".threads: is empty");
  faults.index(where, ".exe", p.exe, tree.files.size());
  faults.index(where, ".cwd", p.cwd, tree.files.size());
  faults.index(where, ".root", p.root, tree.files.size());
  // What is shared belongs to a process further up.
  faults.index(where, ".memory_of", p.memory_of, number);
  faults.index(where, ".descriptors_of", p.descriptors_of, number);
  faults.index(where, ".folders_of", p.fs_of, number);
  faults.index(where, ".handlers_of", p.sighand_of, number);
  check_maps(tree, p, where, faults);
}

/// How many there are of what Descriptor::object counts.
size_t objects_of(const TreeImage& tree, DescriptorKind kind) {
  switch (kind) {
    case DescriptorKind::kSocket: return tree.sockets.size();
    case DescriptorKind::kTerminal: return tree.terminal_ends.size();
    case DescriptorKind::kInotify: return tree.inotifies.size();
    case DescriptorKind::kFanotify: return tree.fanotifies.size();
    case DescriptorKind::kPidfd: return tree.process_handles.size();
    case DescriptorKind::kPosixQueue: return tree.posix_queues.size();
    case DescriptorKind::kIoUring: return tree.io_urings.size();
    case DescriptorKind::kProcFile: return tree.namespaces.further.size();
#define CKPT_NONE(Type, member, inode) case DescriptorKind::k##Type:
      CKPT_PLAIN_KINDS(CKPT_NONE)
#undef CKPT_NONE
    case DescriptorKind::kFile:
    case DescriptorKind::kDevice:
    case DescriptorKind::kPipe:
    case DescriptorKind::kExternal:
    case DescriptorKind::kMemfd:
    case DescriptorKind::kFifo: break;
  }
  return 0;
}

/// Runs of chunks lie inside the allocation, in order.
bool runs_fit(const DeviceAllocation& allocation) {
  uint64_t end = 0;
  const uint64_t chunks = allocation.size / kBlockSize;
  for (const DeviceRun& run : allocation.recomputed) {
    if (run.count == 0 || run.first < end || run.first >= chunks || run.count > chunks - run.first) return false;
    end = run.first + run.count;
  }
  return true;
}

void check_devices(const Manifest& manifest, Faults& faults) {
  const TreeImage& tree = manifest.tree;
  uint64_t hashes = 0;
  for (const StoredFile& file : manifest.files) hashes = file.name == "pipes" ? file.size : hashes;
  for (size_t i = 0; i < tree.devices.size() && faults.none(); ++i) {
    const DeviceMemory& memory = tree.devices[i];
    auto where = [&] { return fmt::format("tree.devices[{}]", i); };
    faults.index(where, ".process", memory.process, tree.processes.size());
    uint64_t end = 0;
    for (size_t k = 0; k < memory.allocations.size() && faults.none(); ++k) {
      const DeviceAllocation& a = memory.allocations[k];
      auto place = [&] { return fmt::format("{}.allocations[{}]", where(), k); };
      constexpr uint64_t kEnd = uint64_t{1} << kSpaceShift;
      if (a.size == 0 || a.size % kBlockSize != 0 || a.address % kBlockSize != 0) {
        faults.note(place, ": is not made of whole chunks");
      } else if (a.address < end || a.address >= kEnd || a.size > kEnd - a.address) {
        faults.note(place, ": overlaps the one before, is out of order or too far up");
      } else if (const uint64_t need = a.size / kBlockSize * kDeviceHashSize;
                 need > hashes || a.hashes_offset > hashes - need) {
        faults.note(place, ".hashes_offset: its hashes are not all in the file");
      } else if (!runs_fit(a)) {
        faults.note(place, ".recomputed: lie outside it");
      }
      end = a.address + a.size;
    }
  }
}

/// What a pid namespace lies in ends somewhere, and not too far up.
void check_further(const std::vector<FurtherNamespace>& further, Faults& faults) {
  for (size_t i = 0; i < further.size() && faults.none(); ++i) {
    auto place = [&] { return fmt::format("tree.namespaces.further[{}].parent", i); };
    faults.index(place, "", further[i].parent, further.size());
  }
  for (size_t i = 0; i < further.size() && faults.none(); ++i) {
    auto place = [&] { return fmt::format("tree.namespaces.further[{}].parent", i); };
    int levels = 1, above = further[i].parent;
    for (; above >= 0 && levels <= kMostPidLevels; ++levels) above = further[static_cast<size_t>(above)].parent;
    if (levels > kMostPidLevels) faults.note(place, ": lies within itself, or too deep");
  }
}

/// What holds between members: indices lead somewhere, mappings are in order. Empty, or the first fault.
std::string check_relations(const Manifest& manifest) {
  const TreeImage& tree = manifest.tree;
  Faults faults;
  if (tree.processes.empty()) return "tree.processes: is empty";
  for (size_t i = 0; i < tree.processes.size() && faults.none(); ++i) check_process(tree, i, faults);
  for (size_t i = 0; i < tree.descriptors.size() && faults.none(); ++i) {
    const Descriptor& d = tree.descriptors[i];
    auto place = [&] { return fmt::format("tree.descriptors[{}]", i); };
    faults.index(place, ".file", d.file, tree.files.size());
    faults.index(place, ".pipe", d.pipe, tree.pipes.size());
    faults.index(place, ".shared_memory", d.shared_memory, tree.shared_memory.size());
    faults.index(place, ".object", d.object, objects_of(tree, d.kind));
    for (const EpollEntry& entry : d.epoll.entries) {
      faults.index(place, ".epoll", entry.process, tree.processes.size());
      faults.index(place, ".epoll", entry.descriptor, tree.descriptors.size());
    }
    const auto& [microseconds, budget, preferred] = d.epoll.busy_poll;
    if (microseconds > INT32_MAX || budget > UINT16_MAX || preferred > 1)
      faults.note(place, ".epoll_busy_poll: is out of range");
    for (const FdSlot& slot : d.fds) faults.index(place, ".fds", slot.process, tree.processes.size());
  }
  for (size_t i = 0; i < tree.io_urings.size(); ++i) {
    const IoUring& ring = tree.io_urings[i];
    auto place = [&] { return fmt::format("tree.io_urings[{}]", i); };
    faults.index(place, ".process", ring.process, tree.processes.size());
    faults.index(place, ".eventfd", ring.eventfd, tree.descriptors.size());
    for (int file : ring.files) faults.index(place, ".files", file, tree.descriptors.size());
    for (const IoUringPoller& poller : ring.poller) faults.index(place, ".poller", poller.ring, i);
    for (const IoUringView& view : ring.views) faults.index(place, ".views", view.process, tree.processes.size());
  }
  for (size_t i = 0; i < tree.ipc.adjustments.size(); ++i) {
    auto place = [&] { return fmt::format("tree.ipc.adjustments[{}]", i); };
    faults.index(place, ".process", tree.ipc.adjustments[i].process, tree.processes.size());
    faults.index(place, ".set", tree.ipc.adjustments[i].set, tree.ipc.sets.size());
  }
  for (size_t i = 0; i < tree.aio_contexts.size(); ++i) {
    auto place = [&] { return fmt::format("tree.aio_contexts[{}]", i); };
    faults.index(place, ".process", tree.aio_contexts[i].process, tree.processes.size());
  }
  check_further(tree.namespaces.further, faults);
  check_devices(manifest, faults);
  return faults.first();
}

/// Or none.
bool is_sha256(const std::string& text) { return text.empty() || is_hex(text, 64); }

std::string check_identity(const Manifest& m) {
  if (!is_id(m.id)) return "id: is not 32 hex digits";
  if (m.parent_path.empty() != m.parent_id.empty())
    return "parent_path: goes with parent_id, and one of them is missing";
  if (!is_sha256(m.parent_sha256)) return "parent_sha256: is not 64 hex digits";
  if (!m.parent_id.empty() && !is_id(m.parent_id)) return "parent_id: is not 32 hex digits";
  if (!m.job.id.empty() && !is_id(m.job.id)) return "job.id: is not 32 hex digits";
  if (m.job.id.empty() ? m.job.ranks != 0 : m.job.rank >= m.job.ranks) return "job.rank: is not one of its ranks";
  for (size_t i = 0; i < m.files.size(); ++i) {
    const std::string& digest = m.files[i].xxh128;
    if (!digest.empty() && !is_id(digest)) return fmt::format("files[{}].xxh128: is not 32 hex digits", i);
    if (!is_sha256(m.files[i].sha256)) return fmt::format("files[{}].sha256: is not 64 hex digits", i);
  }
  return "";
}

}  // namespace

std::string check_manifest(const Manifest& manifest) {
  std::string fault = check_identity(manifest);
  return fault.empty() ? check_relations(manifest) : fault;
}

}  // namespace ckpt::store
