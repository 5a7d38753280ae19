#include "lib/store/features.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>

#include "lib/store/image.h"

namespace ckpt::store {

namespace {

struct Feature {
  const char* name;
  bool (*is_needed)(const Manifest&);
};

/// A deleted file that was open under several names: all but the first have no bytes of their own.
bool has_names_of_deleted_file(const Manifest& manifest) {
  const auto& files = manifest.tree.files;
  return std::any_of(files.begin(), files.end(), [](const FileIdentity& f) {
    return f.deleted && S_ISREG(f.mode) && f.other_name.empty() && f.space < 0;
  });
}

/// Content of files that have a name: a reader that does not know of it would leave them as they are.
bool has_file_contents(const Manifest& manifest) {
  const auto& files = manifest.tree.files;
  return std::any_of(files.begin(), files.end(),
                     [](const FileIdentity& f) { return f.space >= 0 && !(f.deleted && f.other_name.empty()); });
}

bool has_told_eventfds(const Manifest& manifest) {
  const auto& rings = manifest.tree.io_urings;
  return std::any_of(rings.begin(), rings.end(), [](const IoUring& ring) { return ring.eventfd >= 0; });
}

bool has_other_rings(const Manifest& manifest) {
  const auto& rings = manifest.tree.io_urings;
  return std::any_of(rings.begin(), rings.end(), [](const IoUring& ring) { return ring.needs_more(); });
}

bool has_leases(const Manifest& manifest) {
  const auto& descriptors = manifest.tree.descriptors;
  return std::any_of(descriptors.begin(), descriptors.end(), [](const Descriptor& d) { return d.lease() != nullptr; });
}

bool has_huge_pages(const Manifest& manifest) {
  const auto& processes = manifest.tree.processes;
  const auto& shared = manifest.tree.shared_memory;
  return std::any_of(shared.begin(), shared.end(), [](const SharedMemory& m) { return m.huge_page != 0; }) ||
         std::any_of(processes.begin(), processes.end(), [](const ProcessImage& p) {
           return std::any_of(p.maps.begin(), p.maps.end(),
                              [](const MemoryMap& m) { return m.kind == MappingKind::kHugePages; });
         });
}

bool has_labels(const Manifest& manifest) {
  const auto& processes = manifest.tree.processes;
  return std::any_of(processes.begin(), processes.end(), [](const ProcessImage& p) {
    return std::any_of(p.threads.begin(), p.threads.end(), [](const Thread& t) { return !t.labels.empty(); });
  });
}

/// Of another thread than the first, which is not the process's.
bool has_personalities(const Manifest& manifest) {
  const auto& processes = manifest.tree.processes;
  return std::any_of(processes.begin(), processes.end(), [](const ProcessImage& p) {
    return std::any_of(p.threads.begin(), p.threads.end(), [&](const Thread& t) {
      return t.tid != p.pid && t.personality >= 0 && static_cast<uint64_t>(t.personality) != p.personality;
    });
  });
}

bool has_attributes(const Manifest& manifest) {
  const auto has = [](const auto& one) { return !one.attributes.empty() || one.write_hint != 0; };
  const TreeImage& tree = manifest.tree;
  return std::any_of(tree.files.begin(), tree.files.end(), has) ||
         std::any_of(tree.shared_memory.begin(), tree.shared_memory.end(), has);
}

template <class Test>
bool any_process(const Manifest& manifest, Test test) {
  return std::any_of(manifest.tree.processes.begin(), manifest.tree.processes.end(), test);
}

template <class Test>
bool any_socket(const Manifest& manifest, Test test) {
  return std::any_of(manifest.tree.sockets.begin(), manifest.tree.sockets.end(), test);
}

/// A connection that has ended, with bytes that were not read.
bool has_unread_end(const Socket& socket) {
  return socket.state == SocketState::kClosed && socket.tcp.receive_size != 0;
}

/// Never renamed: they stand in images.
constexpr Feature kFeatures[] = {
    {"membarrier",
     [](const Manifest& m) { return any_process(m, [](const ProcessImage& p) { return p.membarrier != 0; }); }},
    {"future-locks",
     [](const Manifest& m) { return any_process(m, [](const ProcessImage& p) { return p.future_locks != 0; }); }},
    {"names-of-deleted-file", has_names_of_deleted_file},
    {"file-contents", has_file_contents},
    {"io_uring", [](const Manifest& m) { return !m.tree.io_urings.empty(); }},
    {"leases", has_leases},
    {"aio", [](const Manifest& m) { return !m.tree.aio_contexts.empty(); }},
    {"huge-pages", has_huge_pages},
    {"io_uring-eventfd", has_told_eventfds},
    {"io_uring-more", has_other_rings},
    {"sem-undo", [](const Manifest& m) { return !m.tree.ipc.adjustments.empty(); }},
    {"namespaces", [](const Manifest& m) { return !m.tree.namespaces.own.empty(); }},
    {"ipc-limits", [](const Manifest& m) { return !m.tree.namespaces.ipc_limits.empty(); }},
    {"time-namespace", [](const Manifest& m) { return m.tree.namespaces.has("time"); }},
    {"user-namespace", [](const Manifest& m) { return m.tree.namespaces.has("user"); }},
    {"security-labels", has_labels},
    {"personalities", has_personalities},
    {"extended-attributes", has_attributes},
    {"tcp-unread", [](const Manifest& m) { return any_socket(m, has_unread_end); }},
    {"tcp-connecting",
     [](const Manifest& m) {
       return any_socket(m, [](const Socket& s) { return s.state == SocketState::kConnecting; });
     }},
    {"further-namespaces", [](const Manifest& m) { return !m.tree.namespaces.further.empty(); }},
    {"pid-namespaces-within",
     [](const Manifest& m) {
       const auto& further = m.tree.namespaces.further;
       return std::any_of(further.begin(), further.end(), [](const auto& one) { return one.kind == "pid"; });
     }},
    {"network",
     [](const Manifest& m) {
       return m.tree.namespaces.network.has_content() || !m.tree.namespaces.network.filters.empty();
     }},
};

}  // namespace

std::vector<std::string> required_features(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const Feature& feature : kFeatures) {
    if (feature.is_needed(manifest)) out.emplace_back(feature.name);
  }
  return out;
}

Result<void> check_features(std::span<const std::string> features) {
  std::vector<std::string> unknown;
  for (const std::string& name : features) {
    const bool known =
        std::any_of(std::begin(kFeatures), std::end(kFeatures), [&](const Feature& f) { return name == f.name; });
    if (!known) unknown.push_back(name);
  }
  if (unknown.empty()) return {};
  return Error(Code::kUnsupported, "", fmt::format("needs what this ckpt does not know: {}", fmt::join(unknown, ", ")))
      .with_hint("a newer ckpt wrote it; restore it with that one");
}

}  // namespace ckpt::store
