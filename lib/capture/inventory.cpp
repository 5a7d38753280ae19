#include "lib/capture/inventory.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "lib/base/text.h"
#include "lib/capture/inventory_internal.h"

namespace ckpt::capture {

std::string Blocker::text() const { return subject + ": " + what + (flag.empty() ? "" : " (" + flag + " allows it)"); }

Error blocked_error(int pid, const std::vector<Blocker>& blockers) {
  Error error(Code::kUnsupported, "process " + proc::describe_pid(pid),
              blockers.size() == 1 ? "has something that cannot be dumped" : "has things that cannot be dumped");
  for (const Blocker& b : blockers) error.causes.push_back(b.text());
  error.target_state = "running, untouched";
  for (const Blocker& b : blockers) {
    if (!b.flag.empty()) error.hint = "with " + b.flag + " it is taken over from the restoring shell";
  }
  return error;
}

int FileTable::find(const std::string& path, uint64_t inode) const {
  auto known = by_path_.find(path);
  return known != by_path_.end() && files_[static_cast<size_t>(known->second)].inode == inode ? known->second : -1;
}

Result<int> FileTable::add(const std::string& path, const struct stat& st) {
  constexpr std::string_view kDeleted = " (deleted)";
  struct stat named{};
  bool there = ::stat(path.c_str(), &named) == 0;
  if (!there || named.st_ino != st.st_ino || named.st_dev != st.st_dev) {
    bool deleted = path.size() > kDeleted.size() && path.compare(path.size() - kDeleted.size(), kDeleted.size(), kDeleted) == 0;
    if (deleted) return fail(Code::kAnswerNo, path, "a file that was deleted while in use, which is not supported yet");
    return fail(Code::kAnswerNo, path, there ? "its name now leads to another file" : "its name cannot be reached from here");
  }
  if (auto known = by_path_.find(path); known != by_path_.end()) return known->second;
  by_path_.emplace(path, static_cast<int>(files_.size()));
  store::FileIdentity& file = files_.emplace_back();
  file.path = path;
  file.device = st.st_dev, file.inode = st.st_ino;
  file.size = static_cast<uint64_t>(st.st_size);
  file.mtime_ns = st.st_mtim.tv_sec * 1'000'000'000ll + st.st_mtim.tv_nsec;
  file.mode = st.st_mode;
  return static_cast<int>(files_.size() - 1);
}

namespace {

Result<int> add_link(int pid, const char* name, FileTable& files) {
  CKPT_TRY_ASSIGN(std::string path, proc::read_link(pid, name));
  struct stat st{};
  std::string link = "/proc/" + std::to_string(pid) + "/" + name;
  if (::stat(link.c_str(), &st) != 0) return sys_error(link, "cannot stat");
  return files.add(path, st);
}

/// A link that cannot be carried is a blocker; one that cannot be read is an error.
Result<void> take_link(int pid, const char* name, const char* subject, FileTable& files, int& to, Inventory& out) {
  auto index = add_link(pid, name, files);
  if (index) {
    to = *index;
  } else if (index.error().code == Code::kAnswerNo) {
    out.blockers.push_back({subject, index.error().text(), ""});
  } else {
    return std::move(index).error();
  }
  return {};
}

Result<void> take_limits(int pid, store::ProcessImage& image) {
  static constexpr std::array<std::pair<std::string_view, int>, 16> kNames = {{
      {"Max cpu time", RLIMIT_CPU}, {"Max file size", RLIMIT_FSIZE}, {"Max data size", RLIMIT_DATA},
      {"Max stack size", RLIMIT_STACK}, {"Max core file size", RLIMIT_CORE}, {"Max resident set", RLIMIT_RSS},
      {"Max processes", RLIMIT_NPROC}, {"Max open files", RLIMIT_NOFILE}, {"Max locked memory", RLIMIT_MEMLOCK},
      {"Max address space", RLIMIT_AS}, {"Max file locks", RLIMIT_LOCKS}, {"Max pending signals", RLIMIT_SIGPENDING},
      {"Max msgqueue size", RLIMIT_MSGQUEUE}, {"Max nice priority", RLIMIT_NICE},
      {"Max realtime priority", RLIMIT_RTPRIO}, {"Max realtime timeout", RLIMIT_RTTIME},
  }};
  // prlimit(2) on another user's process needs CAP_SYS_RESOURCE; this file does not.
  CKPT_TRY_ASSIGN(std::string text, proc::read_small(pid, "limits"));
  for (const auto& [name, resource] : kNames) {
    size_t at = text.find(std::string(name) + " ");
    if (at == std::string::npos) continue;
    const char* p = text.c_str() + at + name.size();
    uint64_t value[2] = {};
    for (uint64_t& v : value) {
      while (*p == ' ') ++p;
      char* end = nullptr;
      v = std::string_view(p).substr(0, 9) == "unlimited" ? ~0ull : std::strtoull(p, &end, 10);
      p = end != nullptr ? end : p + 9;
    }
    image.limits.push_back({resource, value[0], value[1]});
  }
  return {};
}

uint64_t number_of(const Result<std::string>& text, int base, uint64_t otherwise) {
  if (!text) return otherwise;
  return static_cast<uint64_t>(std::strtoll(text->c_str(), nullptr, base));
}

Result<void> take_process_facts(int pid, Inventory& out) {
  store::ProcessImage& image = out.image;
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(pid));
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, pid));
  image.pid = pid, image.parent_pid = stat.parent, image.group = stat.group, image.session = stat.session;
  image.terminal = stat.terminal;
  image.umask = static_cast<int>(status.umask);
  image.thp_disabled = !status.thp_enabled;
  image.bounds = {stat.start_code, stat.end_code, stat.start_data, stat.end_data, stat.start_brk, 0, stat.start_stack,
                  stat.arg_start, stat.arg_end, stat.env_start, stat.env_end};
  if (stat.state == 'Z' || stat.state == 'X') {
    return fail(Code::kNotFound, "process " + proc::describe_pid(pid), "has ended (a zombie that its parent has not waited for)");
  }
  if (status.tracer != 0 && status.tracer != ::getpid()) {
    out.blockers.push_back({"process " + std::to_string(pid), "is traced by " + proc::describe_pid(status.tracer), ""});
  }
  image.personality = number_of(proc::read_small(pid, "personality"), 16, 0);
  image.oom_score_adj = static_cast<int>(number_of(proc::read_small(pid, "oom_score_adj"), 10, 0));
  image.coredump_filter = static_cast<int>(number_of(proc::read_small(pid, "coredump_filter"), 16, 0x33));
  CKPT_TRY_ASSIGN(image.arguments, proc::read_cmdline(pid));
  CKPT_TRY_ASSIGN(image.auxv, proc::read_auxv(pid));
  return take_limits(pid, image);
}

Result<void> find_tree_and_namespaces(int pid, Inventory& out) {
  CKPT_TRY_ASSIGN(std::vector<int> children, proc::read_children(pid));
  for (int child : children) {
    out.blockers.push_back({"process " + proc::describe_pid(child), "a child of it: process trees are not supported yet", ""});
  }
  for (const char* ns : {"pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time"}) {
    auto theirs = proc::read_link(pid, std::string("ns/") + ns), ours = proc::read_link(::getpid(), std::string("ns/") + ns);
    if (theirs && ours && *theirs != *ours) {
      out.blockers.push_back({"namespace " + *theirs, "another one than ckpt's, which is not supported yet", ""});
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> lasting_flags(const proc::Vma& vma) {
  std::vector<std::string> out = vma.flags;
  std::erase_if(out, [](const std::string& flag) { return flag == "uw" || flag == "sd"; });
  return out;
}

Result<bool> advice_unchanged(int pid, const Inventory& earlier) {
  CKPT_TRY_ASSIGN(std::vector<proc::Vma> now, proc::read_maps(pid, true));
  auto is = [](const proc::Vma& vma, uint64_t start) { return vma.start < start; };
  for (const proc::Vma& then : earlier.vmas) {
    auto at = std::lower_bound(now.begin(), now.end(), then.start, is);
    if (at == now.end() || at->start != then.start || at->end != then.end) continue;
    if (lasting_flags(*at) != lasting_flags(then) && at->prot == then.prot && at->name == then.name) return false;
  }
  return true;
}

Result<Inventory> take_inventory(int pid, int pidfd, const InventoryOptions& options) {
  if (pid == ::getpid() || pid == ::getppid()) return fail(Code::kUsage, std::to_string(pid), "ckpt cannot dump itself");
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(pid));
  if (stat.is_kernel_thread()) return fail(Code::kUnsupported, "process " + proc::describe_pid(pid), "is a kernel thread");
  Inventory out;
  FileTable files(out.image.files);
  CKPT_TRY(take_process_facts(pid, out));
  CKPT_TRY(inventory_threads(pid, out));
  CKPT_TRY(inventory_maps(pid, options, files, out));
  CKPT_TRY(take_link(pid, "exe", "its executable", files, out.image.exe, out));
  CKPT_TRY(take_link(pid, "cwd", "its working directory", files, out.image.cwd, out));
  CKPT_TRY(take_link(pid, "root", "its root directory", files, out.image.root, out));
  CKPT_TRY(inventory_descriptors(pid, pidfd, options, files, out));
  CKPT_TRY(find_tree_and_namespaces(pid, out));
  return out;
}

}  // namespace ckpt::capture
