// Namespaces that processes of a tree have apart from its first one, read.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/state/mounts/capture.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/capture.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/network/capture.h"
#include "lib/state/network/links.h"

namespace ckpt::capture {

namespace {

using store::FurtherNamespace;

std::string subject_of(const std::string& link) { return "namespace " + link; }

bool is_same(int one, int other) {
  struct stat a {}, b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/// Reads them one by one, each through the first process that was met in it.
class FurtherReader {
 public:
  explicit FurtherReader(Walk& walk) : walk_(walk) {}

  Result<void> run() {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      for (const std::string& link : walk_.seen[i].apart) {
        if (walk_.is_zombie(i)) continue;
        CKPT_TRY_ASSIGN(const int index, index_of(i, link));
        walk_.out.image.processes[i].namespaces.push_back(index);
      }
    }
    find_zombies();
    CKPT_TRY(find_levels());
    find_births();
    state::set_further(std::move(handles_));
    for (size_t i = 0; i < all().size(); ++i) CKPT_TRY(take(i));
    block_shared_folders();
    return {};
  }

 private:
  std::vector<FurtherNamespace>& all() { return walk_.out.image.namespaces.further; }
  void block(size_t index, std::string what) {
    walk_.out.block(holders_[index], subject_of(walk_.out.further[index]), std::move(what));
  }

  Result<int> index_of(size_t process, const std::string& link) {
    const auto [known, is_new] = known_.emplace(link, static_cast<int>(all().size()));
    if (!is_new) return known->second;
    const std::string kind = link.substr(0, link.find(':'));
    const std::string path = fmt::format("/proc/{}/ns/", walk_.members[process].entry.pid);
    state::MountNamespace handle;
    if (kind == "mnt") {
      CKPT_TRY_ASSIGN(handle, state::open_mount_namespace(path + kind));
    } else {
      CKPT_TRY_ASSIGN(handle.handle, io::open_file(path + kind, O_RDONLY));
    }
    CKPT_TRY_ASSIGN(const UniqueFd user, io::open_file(path + "user", O_RDONLY));
    const UniqueFd owner(::ioctl(handle.handle.get(), NS_GET_USERNS));
    holders_.push_back(process);
    walk_.out.further.push_back(link);
    all().emplace_back().kind = kind;
    handles_.push_back(std::move(handle));
    const size_t index = all().size() - 1;
    foreign_.push_back(!owner || !is_same(owner.get(), user.get()));
    if (foreign_.back()) {
      block(index, "does not belong to the user namespace of its processes, which is not supported");
    } else if ((kind == "mnt" || kind == "pid") && walk_.out.image.namespaces.has("user")) {
      block(index, "is another one than that of its tree's first process, in a user namespace: not supported");
    }
    return known->second;
  }

  /// Who makes it again is number 1 there.
  void check_first(size_t index) {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      const auto& statuses = walk_.out.statuses[i];
      const bool is_first = !statuses.empty() && statuses[0].ns_pids.size() > 1 && statuses[0].ns_pids.back() == 1;
      const std::vector<int>& own = walk_.out.image.processes[i].namespaces;
      if (is_first && std::find(own.begin(), own.end(), static_cast<int>(index)) != own.end()) return;
    }
    block(index, "a pid namespace whose first process is not of the tree: not supported");
  }

  /// Of those that have ended: what is in a pid namespace has its first process there.
  void find_zombies() {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      for (const std::string& link : walk_.is_zombie(i) ? walk_.seen[i].apart : std::vector<std::string>()) {
        const auto known = known_.find(link);
        if (known != known_.end()) walk_.out.image.processes[i].namespaces.push_back(known->second);
        else walk_.out.block(i, subject_of(link), "a pid namespace whose first process is not of the tree");
      }
    }
  }

  /// What each pid namespace lies in.
  Result<void> find_levels() {
    const auto own = proc::read_link(walk_.members[0].entry.pid, "ns/pid");
    for (size_t i = 0; i < all().size(); ++i) {
      if (all()[i].kind != "pid") continue;
      check_first(i);
      const UniqueFd parent(::ioctl(handles_[i].handle.get(), NS_GET_PARENT));
      struct stat st {};
      if (!parent || ::fstat(parent.get(), &st) != 0)
        return sys_error(subject_of(walk_.out.further[i]), "cannot be asked for what it lies in");
      const std::string link = fmt::format("pid:[{}]", st.st_ino);
      const auto known = known_.find(link);
      if (known != known_.end()) all()[i].parent = known->second;
      else if (!own || link != *own)
        block(i, "lies in a pid namespace that no process of the tree is in: not supported");
    }
    return {};
  }

  /// Where the next children are born that have no namespace of their own.
  void find_births() {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      const std::string& link = walk_.seen[i].pids_for_children;
      if (link.empty()) continue;
      const auto known = known_.find(link);
      if (known == known_.end())
        walk_.out.block(i, "pid_for_children", "the process has made a pid namespace for its children (unshare) that "
                                               "none of the tree is in: not supported");
      else if (walk_.out.statuses[i][0].threads > 1)
        walk_.out.block(i, "pid_for_children", "its children are born in another pid namespace (unshare), and it has "
                                               "several threads: not supported");
      else
        walk_.out.image.processes[i].pid_for_children = known->second;
    }
  }

  Result<void> take(size_t index) {
    FurtherNamespace& out = all()[index];
    if (foreign_[index] || out.kind == "pid") return {};
    if (out.kind == "mnt") return take_mounts(index, out.mounts);
    const store::FurtherNamespace* then = earlier(index);
    if (out.kind == "net" && then != nullptr) return out.network = then->network, Result<void>();
    CKPT_TRY_ASSIGN(const state::Visit visit, state::Visit::begin(state::further_handle(static_cast<int>(index)),
                                                                  out.kind));
    if (out.kind == "net") return take_net(index, out.network);
    if (out.kind == "ipc") return take_ipc(index, out);
    utsname names{};
    if (::uname(&names) != 0) return sys_error(subject_of(walk_.out.further[index]), "cannot be asked for its names");
    out.hostname = names.nodename, out.domainname = names.domainname;
    return {};
  }

  /// As it was in the look while the tree ran; null: there was none, or this is a first look.
  const FurtherNamespace* earlier(size_t index) const {
    if (!walk_.options.frozen || walk_.options.earlier == nullptr) return nullptr;
    const Inventory& then = *walk_.options.earlier;
    const auto found = std::find(then.further.begin(), then.further.end(), walk_.out.further[index]);
    if (found == then.further.end()) return nullptr;
    return &then.image.namespaces.further[static_cast<size_t>(found - then.further.begin())];
  }

  Result<void> take_mounts(size_t index, store::Mounts& out) {
    const state::InMounts there(static_cast<int>(index));
    state::OtherMounts others = {&walk_.out.image.namespaces.mounts};
    for (size_t i = 0; i < index; ++i) others.push_back(&all()[i].mounts);
    CKPT_TRY(inventory_further_mounts(walk_, others, out));
    if (!walk_.options.ends) return {};
    for (const std::string& mount : state::mounts_in_the_way(out, others))
      block(index, mount + ", which a restore cannot make again yet");
    return {};
  }

  Result<void> take_net(size_t index, store::Network& out) {
    CKPT_TRY_ASSIGN(out, take_network());
    if (!walk_.options.ends) return {};
    for (const std::string& thing : out.beyond) block(index, thing + ", which a restore cannot make again yet");
    for (const store::NetworkLink& link : out.links) {
      if (state::leads_outside(link))
        block(index, fmt::format("interface {}, a veth with its other end outside it: not supported", link.name));
    }
    return {};
  }

  Result<void> take_ipc(size_t index, FurtherNamespace& out) {
    CKPT_TRY_ASSIGN(out.ipc_limits, state::read_ipc_limits());
    for (const char* kind : {"shm", "sem", "msg"}) {
      constexpr uint64_t kLimit = 64 << 20;
      CKPT_TRY_ASSIGN(const std::string table, io::read_file(std::string("/proc/sysvipc/") + kind, kLimit));
      if (std::count(table.begin(), table.end(), '\n') > 1)
        return block(index, "has System V objects, which go with the first process's only: not supported"),
               Result<void>();
    }
    const UniqueFd context(::fsopen("mqueue", FSOPEN_CLOEXEC));
    if (!context) return {};  // a kernel without message queues
    const bool made = ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
    const UniqueFd queues(made ? ::fsmount(context.get(), FSMOUNT_CLOEXEC, 0) : -1);
    if (!queues) return sys_error(subject_of(walk_.out.further[index]), "cannot be asked for its message queues");
    std::error_code ec;
    const std::filesystem::directory_iterator first(fmt::format("/proc/self/fd/{}", queues.get()), ec);
    if (ec)
      return sys_error(ec.value(), subject_of(walk_.out.further[index]), "cannot be asked for its message queues");
    if (first != std::filesystem::directory_iterator())
      block(index, "has POSIX message queues, which go with the first process's only: not supported");
    return {};
  }

  /// The kernel lets nobody enter a mount namespace who shares his folders.
  void block_shared_folders() {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      if (walk_.out.image.processes[i].fs_of >= 0 && walk_.mounts_of(i) >= 0)
        walk_.out.block(i, "", "shares its folders with another process (CLONE_FS), in a mount namespace that is not "
                               "the first process's: not supported");
    }
  }

  Walk& walk_;
  std::map<std::string, int> known_;
  std::vector<size_t> holders_;  ///< a process in each
  std::vector<bool> foreign_;    ///< of each: it belongs to another user namespace, and is blocked
  std::vector<state::MountNamespace> handles_;
};

}  // namespace

void note_inner_credentials(Walk& walk) {
  std::set<int> named;
  for (const store::Socket& socket : walk.out.image.sockets) {
    named.insert({socket.peer_credentials.pid, socket.connector.pid});
    for (const store::SocketMessage& message : socket.messages) named.insert(message.sender_pid);
  }
  for (size_t i = 0; i < walk.members.size(); ++i) {
    const store::ProcessImage& process = walk.out.image.processes[i];
    if (process.inner_groups.empty() || named.count(process.pid) == 0) continue;
    walk.out.notes.push_back(
        fmt::format("process {} is in a further pid namespace: after a restore the credentials of unix sockets that "
                    "name it (SO_PEERCRED, SCM_CREDENTIALS) give others there the number 0",
                    process.pid));
  }
}

int Walk::mounts_of(size_t process) const { return state::further_of(out.image, process, "mnt"); }

Result<void> inventory_further(Walk& walk) { return FurtherReader(walk).run(); }

}  // namespace ckpt::capture
