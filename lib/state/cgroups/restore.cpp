#include "lib/state/cgroups/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "lib/base/io.h"

namespace ckpt::restore {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    size_t end = std::min(text.find(separator), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string small_file(const fs::path& path) {
  constexpr uint64_t kLimit = 1 << 20;
  auto text = io::read_file(path, kLimit);
  return text ? *text : "";
}

/// What is put into a frozen group stops for good.
bool is_frozen(const fs::path& folder) {
  if (small_file(folder / "cgroup.events").find("frozen 1") != std::string::npos) return true;
  std::string state = small_file(folder / "freezer.state");
  return !state.empty() && state.find("THAWED") == std::string::npos;
}

/// A new cpuset of version 1 takes nobody before it has processors and memory.
void fill_cpuset(const fs::path& folder) {
  for (const char* name : {"cpuset.cpus", "cpuset.mems"}) {
    std::string own = small_file(folder / name);
    if (own != "\n") continue;
    (void)io::write_file(folder / name, small_file(folder.parent_path() / name));
  }
}

/// Missing folders are made from the top down. False: `errno` says why not.
bool make_group(const fs::path& folder, bool version_1) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return true;
  if (!make_group(folder.parent_path(), version_1)) return false;
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return false;
  if (version_1) fill_cpuset(folder);
  return true;
}

Result<void> write_number(const fs::path& path, int number) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY));
  std::string text = std::to_string(number);
  if (::write(fd.get(), text.data(), text.size()) < 0) return sys_error(path, "cannot move a process there");
  return {};
}

/// `file`: of a group, takes the number.
void join(const CgroupMounts& mounts, int pid, int tid, const char* file_v1, const char* file_v2,
          const std::vector<store::Cgroup>& groups, ProgressSink& progress) {
  if (mounts.leaves()) return;
  std::string now = small_file(fmt::format("/proc/{}/task/{}/cgroup", pid, tid));
  for (const auto& recorded : groups) {
    const store::Cgroup group = mounts.moved(recorded);
    bool version_1 = !group.controllers.empty();
    if (("\n" + now).find(fmt::format(":{}:{}\n", group.controllers, group.path)) != std::string::npos) continue;
    std::string name = fmt::format("control group {}{}{}", group.controllers, version_1 ? ":" : "", group.path);
    std::string folder = mounts.folder_of(group);
    if (folder.empty()) {
      progress.note(fmt::format("{} is not mounted here: process {} is not put back into it", name, pid));
      continue;
    }
    std::error_code ignored;
    bool existed = fs::is_directory(folder, ignored);
    if (!make_group(folder, version_1)) {
      progress.note(fmt::format("{} is gone and cannot be made again ({}): process {} is not put back into it", name,
                                std::strerror(errno), pid));
      continue;
    }
    if (!existed) progress.note(fmt::format("{} was gone and has been made again, without limits", name));
    if (is_frozen(folder)) {
      progress.note(fmt::format("{} is frozen: process {} is not put back into it", name, pid));
      continue;
    }
    auto moved = write_number(fs::path(folder) / (version_1 ? file_v1 : file_v2), tid);
    if (!moved)
      progress.note(fmt::format("process {} is not put back into its {}: {}", pid, name, moved.error().text()));
  }
}

}  // namespace

Result<CgroupMounts> CgroupMounts::find() {
  constexpr uint64_t kLimit = 64 << 20;
  CKPT_TRY_ASSIGN(std::string text, io::read_file("/proc/self/mountinfo", kLimit));
  return parse(text);
}

CgroupMounts CgroupMounts::parse(std::string_view mountinfo) {
  CgroupMounts out;
  for (const std::string& line : split(mountinfo, '\n')) {
    size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::vector<std::string> left = split(line.substr(0, dash), ' '), right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3 || (right[0] != "cgroup" && right[0] != "cgroup2")) continue;
    out.mounts_.push_back({right[0] == "cgroup2", split(right[2], ','), left[3], left[4]});
  }
  return out;
}

void CgroupMounts::rearrange(const state::CgroupOptions& options, const std::vector<store::Cgroup>& first) {
  leaves_ = options.leave;
  moves_.clear();
  for (const store::Cgroup& group : first) {
    const std::vector<std::string> own = split(group.controllers, ',');
    const store::Cgroup* chosen = nullptr;
    for (const store::Cgroup& root : options.roots) {
      const bool named =
          root.controllers == group.controllers || std::find(own.begin(), own.end(), root.controllers) != own.end();
      if (named || (root.controllers == "*" && chosen == nullptr)) chosen = &root;
    }
    if (chosen != nullptr) moves_.push_back({group.controllers, group.path, chosen->path});
  }
}

store::Cgroup CgroupMounts::moved(const store::Cgroup& group) const {
  for (const Move& move : moves_) {
    const std::string from = move.from == "/" ? "" : move.from, to = move.to == "/" ? "" : move.to;
    if (move.controllers != group.controllers) continue;
    if (group.path == move.from) return {group.controllers, move.to};
    if (group.path.starts_with(from + "/")) return {group.controllers, to + group.path.substr(from.size())};
  }
  return group;
}

std::string CgroupMounts::folder_of(const store::Cgroup& group) const {
  std::vector<std::string> wanted = split(group.controllers, ',');
  // A path that leads out of ckpt's own cgroup namespace ("/../other"), or is no path of a group.
  if (("/" + group.path + "/").find("/../") != std::string::npos || group.path.empty() || group.path[0] != '/')
    return "";
  for (const Mount& mount : mounts_) {
    if (mount.version_2 != wanted.empty()) continue;
    bool all = std::all_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
      return std::find(mount.options.begin(), mount.options.end(), name) != mount.options.end();
    });
    if (!all) continue;
    std::string root = mount.root == "/" ? "" : mount.root;
    if (group.path != root && group.path.compare(0, root.size() + 1, root + "/") != 0) continue;
    std::string below = group.path.substr(root.size());
    return below == "/" ? mount.path : mount.path + below;
  }
  return "";
}

void join_cgroups(const CgroupMounts& mounts, int pid, const std::vector<store::Cgroup>& groups,
                  ProgressSink& progress) {
  join(mounts, pid, pid, "cgroup.procs", "cgroup.procs", groups, progress);
}

void join_cgroups_alone(const CgroupMounts& mounts, int pid, int tid, const std::vector<store::Cgroup>& groups,
                        ProgressSink& progress) {
  join(mounts, pid, tid, "tasks", "cgroup.threads", groups, progress);
}

}  // namespace ckpt::restore
