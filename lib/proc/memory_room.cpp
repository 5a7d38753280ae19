#include "lib/proc/memory_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

constexpr uint64_t kMaxFile = 1 << 20;

/// The number behind "NAME " or "NAME: " at the beginning of a line.
std::optional<uint64_t> value_behind(const std::string& text, std::string_view name) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    if (line.size() > name.size() && line.starts_with(name) && (line[name.size()] == ' ' || line[name.size()] == ':'))
      return std::strtoull(text.c_str() + at + name.size() + 1, nullptr, 10);
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> number_in(const std::filesystem::path& path) {
  auto text = io::read_file(path, kMaxFile);
  if (!text || text->empty() || text->front() < '0' || text->front() > '9') return std::nullopt;  // "max"
  return std::strtoull(text->c_str(), nullptr, 10);
}

struct LimitFiles {
  const char *limit, *used, *cache;
};
constexpr LimitFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr LimitFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

/// Of a group and those above it, up to the one where the hierarchy is mounted.
void add_groups(const std::filesystem::path& mount, std::string_view group, const LimitFiles& names,
                std::vector<MemoryRoom>& out) {
  std::filesystem::path at = mount / std::filesystem::path(group).relative_path();
  for (at = at.lexically_normal(); at != mount && at.has_relative_path(); at = at.parent_path()) {
    const auto limit = number_in(at / names.limit), used = number_in(at / names.used);
    if (!limit || !used) continue;
    auto stat = io::read_file(at / "memory.stat", kMaxFile);
    const uint64_t taken = *used - std::min(*used, stat ? value_behind(*stat, names.cache).value_or(0) : 0);
    out.push_back({fmt::format("{} ({})", at.string(), names.limit), *limit - std::min(*limit, taken)});
  }
}

}  // namespace

std::vector<MemoryRoom> read_memory_room(int pid) {
  std::vector<MemoryRoom> out;
  if (auto text = io::read_file("/proc/meminfo", kMaxFile)) {
    if (auto kib = value_behind(*text, "MemAvailable")) out.push_back({"this machine (MemAvailable)", *kib << 10});
  }
  auto groups = io::read_file(fmt::format("/proc/{}/cgroup", pid), kMaxFile);
  for (size_t at = 0; groups && at < groups->size();) {  // "4:memory:/job", "0::/job"
    const size_t end = std::min(groups->find('\n', at), groups->size());
    const std::string_view line(groups->data() + at, end - at);
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    at = end + 1;
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty())
      add_groups("/sys/fs/cgroup", group, kVersion2, out);
    else if (controllers == "memory")
      add_groups("/sys/fs/cgroup/memory", group, kVersion1, out);
  }
  return out;
}

}  // namespace ckpt::proc
