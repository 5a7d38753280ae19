#include "lib/state/cgroups/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <thread>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"

namespace ckpt::capture {

Result<std::vector<store::Cgroup>> parse_cgroups(std::string_view text) {
  std::vector<store::Cgroup> out;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    size_t first = line.find(':'), second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || second + 1 >= line.size() || line[second + 1] != '/')
      return fail(Code::kIo, "cgroup", fmt::format("\"{}\" is not in the form that this ckpt knows", line));
    out.push_back({std::string(line.substr(first + 1, second - first - 1)), std::string(line.substr(second + 1))});
  }
  return out;
}

Result<std::vector<store::Cgroup>> read_cgroups(int pid, int tid) {
  constexpr uint64_t kLimit = 1 << 20;
  CKPT_TRY_ASSIGN(std::string text, io::read_file(fmt::format("/proc/{}/task/{}/cgroup", pid, tid), kLimit));
  return parse_cgroups(text);
}

namespace {

/// As who is in the control group namespace of `pid` reads them: a thread, which leaves this one's where it is.
Result<std::vector<store::Cgroup>> read_cgroups_inside(int handle, int pid) {
  Result<std::vector<store::Cgroup>> out = std::vector<store::Cgroup>();
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::setns(handle, CLONE_NEWCGROUP) != 0) out = sys_error("control group namespace", "cannot be entered");
    else out = read_cgroups(pid, pid);
  });
  if (!started) return no_thread("");
  apart.join();
  return out;
}

void note_roots(const std::vector<store::Cgroup>& outside, const std::vector<store::Cgroup>& inside,
                std::map<std::string, std::string>& roots) {
  for (const store::Cgroup& group : outside) {
    for (const store::Cgroup& same : inside) {
      if (same.controllers != group.controllers) continue;
      if (auto root = root_of_cgroup(group.path, same.path)) roots.emplace(group.controllers, std::move(*root));
    }
  }
}

}  // namespace

std::optional<std::string> root_of_cgroup(const std::string& outside, const std::string& inside) {
  if (inside == "/") return outside;
  if ((inside + "/").find("/../") != std::string::npos || !outside.ends_with(inside)) return std::nullopt;
  const std::string root = outside.substr(0, outside.size() - inside.size());
  return root.empty() ? "/" : root;
}

Result<std::vector<store::Cgroup>> read_cgroup_roots(const std::vector<int>& pids) {
  std::map<std::string, std::string> roots;
  std::vector<store::Cgroup> outside;
  for (int pid : pids) {
    CKPT_TRY_ASSIGN(const UniqueFd handle, io::open_file(fmt::format("/proc/{}/ns/cgroup", pid), O_RDONLY));
    CKPT_TRY_ASSIGN(outside, read_cgroups(pid, pid));
    CKPT_TRY_ASSIGN(const std::vector<store::Cgroup> inside, read_cgroups_inside(handle.get(), pid));
    note_roots(outside, inside, roots);
    if (roots.size() == outside.size()) break;
  }
  std::vector<store::Cgroup> out;
  for (const store::Cgroup& group : outside) {
    const auto root = roots.find(group.controllers);
    if (root == roots.end())
      return fail(Code::kUnsupported, "", "begins at a control group that none of its processes is in or below");
    out.push_back({group.controllers, root->second});
  }
  return out;
}

}  // namespace ckpt::capture
