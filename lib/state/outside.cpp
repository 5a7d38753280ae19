#include "lib/state/outside.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <list>

#include "lib/base/worker_pool.h"
#include "lib/proc/own_helpers.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

namespace {

using store::DescriptorKind;
using Inode = std::pair<uint64_t, uint64_t>;  ///< device and number
constexpr std::string_view kMemfdLink = "/memfd:", kCopied = "outside the tree, has too: a restore makes a copy";

std::vector<int> other_pids(const std::vector<Member>& members) {
  std::set<int> known = {::getpid()};
  for (const Member& member : members) known.insert(member.entry.pid);
  std::vector<int> out;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ec)) {
    int pid = 0;
    const std::string name = entry.path().filename().string();
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && end == name.data() + name.size() && known.count(pid) == 0) out.push_back(pid);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// What of the tree others may have, too, and who has it.
struct Object {
  std::string subject, what;
  bool shared = true;  ///< false: the tree maps it privately alone, and sees what others write until it writes itself
  int holder = 0;      ///< a pid, 0: nobody
};

/// Of one kind of descriptor, in the order in which kcmp has them.
struct Description {
  int pid = 0, fd = 0;
  size_t object = 0;
};

long compare(const Description& a, const Description& b) {
  return ::syscall(SYS_kcmp, a.pid, b.pid, KCMP_FILE, a.fd, b.fd);
}
bool is_before(const Description& a, const Description& b) { return compare(a, b) == 1; }

class Shared {
 public:
  explicit Shared(Walk& walk) : walk_(walk) {
    find_memory();
    find_deleted_files();
    find_descriptions();
  }

  void look() {
    if (objects_.empty()) return;
    const std::vector<OtherProcess>& others = other_processes(walk_);
    std::vector<std::set<size_t>> held(others.size());
    (void)side_by_side(walk_.pool, others.size(), [&](size_t i) -> Result<void> {
      look_at_descriptors(others[i], held[i]);
      if (!memory_.empty()) look_at_mappings(others[i].pid, held[i]);
      return {};
    });
    for (size_t i = others.size(); i-- > 0;) {
      if (held[i].empty() || is_helper(others[i].pid)) continue;
      for (size_t object : held[i]) objects_[object].holder = others[i].pid;  // the lowest one is named
    }
    for (const Object& object : objects_) {
      if (object.holder != 0) tell(object);
    }
  }

 private:
  size_t add(std::string subject, std::string what) {
    objects_.push_back({std::move(subject), std::move(what)});
    return objects_.size() - 1;
  }

  /// Of ckpt's, which may have a descriptor of the tree still, and does nothing with it.
  static bool is_helper(int pid) {
    auto comm = proc::read_small(pid, "comm");
    return comm && proc::is_own_helper(pid, *comm);
  }

  /// What is sealed against writing is the same in every copy.
  static bool may_change(const store::SharedMemory& memory) {
    constexpr uint32_t kFixed = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
    return memory.kind != store::SharedMemory::Kind::kSystemV && (memory.seals & kFixed) != kFixed;
  }

  void find_memory() {
    const store::TreeImage& image = walk_.out.image;
    std::vector<bool> shared(image.shared_memory.size());
    for (const auto& process : image.processes) {
      for (const auto& map : process.maps) {
        if (map.shared_memory >= 0 && map.kind == store::MappingKind::kSharedMemory)
          shared[static_cast<size_t>(map.shared_memory)] = true;
      }
    }
    for (const auto& descriptor : image.descriptors) {
      if (descriptor.shared_memory >= 0) shared[static_cast<size_t>(descriptor.shared_memory)] = true;
    }
    for (const auto& [inode, index] : walk_.shared_memory.by_inode()) {
      const store::SharedMemory& memory = image.shared_memory[static_cast<size_t>(index)];
      if (!may_change(memory)) continue;
      const bool memfd = memory.kind == store::SharedMemory::Kind::kMemfd;
      const size_t object =
          add(memfd ? "memfd " + memory.name : fmt::format("shared memory {}", memory.inode), "memory");
      objects_[object].shared = shared[static_cast<size_t>(index)];
      memory_.emplace(inode, object);
      has_memfd_ |= memfd;
    }
  }

  void find_deleted_files() {
    const store::TreeImage& image = walk_.out.image;
    for (size_t p = 0; p < image.processes.size(); ++p) {
      const auto& maps = image.processes[p].maps;
      for (size_t i = 0; i < maps.size(); ++i) {
        if (maps[i].kind != store::MappingKind::kSharedFile || maps[i].file < 0) continue;
        const store::FileIdentity& file = image.files[static_cast<size_t>(maps[i].file)];
        const proc::Vma& vma = walk_.out.vmas[p][i];
        if (file.deleted && memory_.count({vma.device, vma.inode}) == 0)
          memory_.emplace(Inode{vma.device, vma.inode}, add(file.path, "a deleted file in memory"));
      }
    }
  }

  void find_descriptions() {
    const store::TreeImage& image = walk_.out.image;
    for (const store::Descriptor& d : image.descriptors) {
      const char* link = d.kind == DescriptorKind::kEventfd   ? "anon_inode:[eventfd]"
                         : d.kind == DescriptorKind::kTimerfd ? "anon_inode:[timerfd]"
                         : d.kind == DescriptorKind::kEpoll   ? "anon_inode:[eventpoll]"
                                                              : nullptr;
      if (link == nullptr || d.fds.empty()) continue;
      const store::FdSlot& slot = d.fds[0];
      const auto process = static_cast<size_t>(slot.process);
      const char* what = d.kind == DescriptorKind::kEventfd   ? "an eventfd"
                         : d.kind == DescriptorKind::kTimerfd ? "a timerfd"
                                                              : "an epoll set";
      const std::string subject = walk_.out.blocker(process, fmt::format("descriptor {}", slot.fd), "").subject;
      descriptions_[link].push_back({image.processes[process].pid, slot.fd, add(subject, what)});
    }
    for (auto& [link, list] : descriptions_) {
      // The answers of a running tree may contradict each other, which only the merges of a list bear.
      std::list<Description> sorted(list.begin(), list.end());
      sorted.sort(is_before);
      list.assign(sorted.begin(), sorted.end());
    }
  }

  void look_at_descriptors(const OtherProcess& other, std::set<size_t>& held) const {
    for (const proc::OpenFd& open : other.fds) {
      if (open.link.starts_with(kMemfdLink)) {
        if (has_memfd_) look_at_memfd(other.pid, open.fd, held);
        continue;
      }
      const auto kind = descriptions_.find(open.link);
      if (kind == descriptions_.end()) continue;
      const Description theirs{other.pid, open.fd, 0};
      const auto found = std::lower_bound(kind->second.begin(), kind->second.end(), theirs, is_before);
      if (found != kind->second.end() && compare(*found, theirs) == 0) held.insert(found->object);
    }
  }

  void look_at_memfd(int pid, int fd, std::set<size_t>& held) const {
    struct stat st {};
    if (::stat(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), &st) != 0) return;
    if (auto found = memory_.find({st.st_dev, st.st_ino}); found != memory_.end()) held.insert(found->second);
  }

  void look_at_mappings(int pid, std::set<size_t>& held) const {
    (void)proc::each_mapping(pid, false, [&](proc::Vma& vma) {
      if (vma.inode == 0) return;
      auto found = memory_.find({vma.device, vma.inode});
      if (found != memory_.end() && (vma.shared || objects_[found->second].shared)) held.insert(found->second);
    });
  }

  void tell(const Object& object) {
    const std::string who = proc::describe_pid(object.holder);
    Inventory& out = walk_.out;
    if (walk_.options.external.memory == state::ExternalMemory::kCopy) {
      out.notes.push_back(fmt::format("{}: {} that {}, {}", object.subject, object.what, who, kCopied));
    } else {
      out.blockers.push_back({object.subject,
                              fmt::format("{} that {}, outside the tree, has too: after a restore they would no longer "
                                          "have it in common",
                                          object.what, who),
                              kExternalMemoryFlag});
    }
  }

  Walk& walk_;
  std::vector<Object> objects_;
  std::map<Inode, size_t> memory_;
  std::map<std::string, std::vector<Description>> descriptions_;  ///< by the text of their link
  bool has_memfd_ = false;
};

}  // namespace

const std::vector<OtherProcess>& other_processes(Walk& walk) {
  if (walk.others) return *walk.others;
  const std::vector<int> pids = other_pids(walk.members);
  std::vector<OtherProcess>& out = walk.others.emplace(pids.size());
  (void)side_by_side(walk.pool, pids.size(), [&](size_t i) -> Result<void> {
    out[i].pid = pids[i];
    if (auto fds = proc::read_fds(pids[i])) out[i].fds = std::move(*fds);
    return {};
  });
  return out;
}

void inventory_outside(Walk& walk) {
  const Inventory* earlier = walk.options.earlier;
  if (earlier == nullptr && !walk.options.frozen) return Shared(walk).look();
  if (earlier == nullptr) return;
  std::copy_if(earlier->notes.begin(), earlier->notes.end(), std::back_inserter(walk.out.notes),
               [](const std::string& note) { return note.ends_with(kCopied); });
}

}  // namespace ckpt::capture
