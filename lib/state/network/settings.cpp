#include "lib/state/network/settings.h"

#include <fcntl.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"

namespace ckpt::state {

namespace fs = std::filesystem;

Settings read_settings() {
  constexpr uint64_t kLimit = 1 << 16;
  Settings out;
  std::error_code ec;
  const fs::path top = "/proc/sys";
  for (fs::recursive_directory_iterator at(top / "net", ec), end; !ec && at != end; at.increment(ec)) {
    std::error_code ignored;
    const fs::perms mode = at->status(ignored).permissions();
    if (at->is_directory(ignored) || (mode & fs::perms::owner_write) == fs::perms::none) continue;
    auto text = io::read_file(at->path(), kLimit);  // some may only be written
    if (text) out[at->path().lexically_relative(top).string()] = std::move(*text);
  }
  return out;
}

namespace {

/// Writing one of these changes others, below net/ipv4/conf and net/ipv6/conf.
bool changes_others(const std::string& path) {
  return path.ends_with("/forwarding") || path.ends_with("/ip_forward") || path.find("/conf/all/") != std::string::npos;
}

bool is_of_interfaces(const std::string& path) { return path.find("/conf/") != std::string::npos; }

/// Where in a path the name of a link is; nothing: it is of none.
struct NameOfLink {
  std::string_view kind, name;
  size_t at = 0;
};
std::optional<NameOfLink> name_in(std::string_view path) {
  for (const std::string_view kind : {"/conf/", "/neigh/"}) {
    const size_t at = path.find(kind), begin = at + kind.size(), end = path.rfind('/');
    if (at != std::string_view::npos && end != std::string_view::npos && end >= begin)
      return NameOfLink{kind, path.substr(begin, end - begin), begin};
  }
  return std::nullopt;
}

/// "net/ipv6/conf/default/mtu" for "net/ipv6/conf/eth0/mtu", and of neighbours, which have no defaults but in the first
/// namespace, what loopback has; empty: it is of no link.
std::string default_of(const std::string& path) {
  const auto link = name_in(path);
  if (!link) return "";
  return path.substr(0, link->at) + (link->kind == "/neigh/" ? "lo" : "default") +
         path.substr(link->at + link->name.size());
}

/// What a new namespace has in the place of a setting; null: nothing.
const std::string* fresh_value(const Settings& fresh, const std::string& path) {
  auto at = fresh.find(path);
  if (at == fresh.end()) at = fresh.find(default_of(path));
  return at == fresh.end() ? nullptr : &at->second;
}

}  // namespace

std::vector<store::KernelSetting> settings_to_make(const Settings& now, const Settings& fresh) {
  std::vector<store::KernelSetting> out;
  bool cascades = false;
  for (const auto& [path, value] : now) {
    const std::string* same = fresh_value(fresh, path);
    if (!changes_others(path) || same == nullptr || *same == value) continue;
    out.push_back({path, value});
    cascades = true;
  }
  for (const auto& [path, value] : now) {
    const std::string* same = fresh_value(fresh, path);
    if (changes_others(path) || same == nullptr) continue;
    if (*same != value || (cascades && is_of_interfaces(path))) out.push_back({path, value});
  }
  return out;
}

Result<void> validate_settings(const std::vector<store::KernelSetting>& settings) {
  for (const store::KernelSetting& setting : settings) {
    const std::string path = "/" + setting.path + "/";
    const bool leads_elsewhere = path.find("/../") != std::string::npos || path.find('\0') != std::string::npos;
    if (!setting.path.starts_with("net/") || leads_elsewhere)
      return fail(Code::kCorrupt, setting.path, "is no setting of a network namespace");
  }
  return {};
}

bool is_of_link(const store::KernelSetting& setting) {
  const auto link = name_in(setting.path);
  return link && link->name != "lo" && link->name != "all" && link->name != "default";
}

bool is_choice_of_addresses(const store::KernelSetting& setting) { return setting.path.ends_with("/addr_gen_mode"); }

Result<void> write_setting(const store::KernelSetting& setting) {
  const std::string path = "/proc/sys/" + setting.path;
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_WRONLY));
  return io::write_all(file.get(), as_bytes(setting.value), path);
}

}  // namespace ckpt::state
