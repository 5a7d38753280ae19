#include "lib/state/mounts/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace ckpt::state {

namespace {

using store::Mount;
using store::Mounts;
using Kind = MountSource::Kind;

bool is_one_of(const std::string& type, const auto& names) {
  return std::find(names.begin(), names.end(), type) != names.end();
}

/// Names of an image never lead upwards.
bool is_plain(const std::string& path) {
  return path.find('\0') == std::string::npos && ("/" + path + "/").find("/../") == std::string::npos &&
         ("/" + path + "/").find("/./") == std::string::npos && path.find("//") == std::string::npos;
}

/// What the user gave for it: by the key of the dump, else by its place.
const std::string* given_for(const Mount& mount, const MountOptions& options) {
  auto found = options.external.find(mount.external.empty() ? mount.point : mount.external);
  if (found == options.external.end()) found = options.external.find(mount.point);
  return found == options.external.end() ? nullptr : &found->second;
}

/// By itself, not through another mount.
std::optional<MountSource> own_source(const Mounts& mounts, size_t index, const MountOptions& options) {
  const Mount& mount = mounts.mounts[index];
  const auto& filesystem = mounts.filesystems[static_cast<size_t>(mount.filesystem)];
  if (index == 0 && !options.root.empty()) return MountSource{Kind::kGiven, options.root};
  if (const std::string* given = given_for(mount, options)) return MountSource{Kind::kGiven, *given};
  if (!mount.host.empty()) return MountSource{Kind::kHost, mount.host};
  const bool can_be = can_be_made(filesystem.type) || (is_in_memory(filesystem.type) && !filesystem.files.empty());
  if (!mount.problem.empty() || !can_be) return std::nullopt;
  std::string rest;
  (void)below(mount.root, "/", rest);
  return MountSource{Kind::kNew, std::move(rest)};
}

/// What another mount of the same file system shows, or something below that.
std::optional<MountSource> through(const Mounts& mounts, size_t index, size_t other) {
  std::string rest;
  const Mount &mount = mounts.mounts[index], &shows = mounts.mounts[other];
  if (other == index || shows.filesystem != mount.filesystem || !below(mount.root, shows.root, rest) || !is_plain(rest))
    return {};
  return MountSource{Kind::kOther, std::move(rest), static_cast<int>(other)};
}

/// What a mount namespace that is made before this one shows, or something below that.
std::optional<MountSource> elsewhere(const Mounts& mounts, size_t index, const OtherMounts& others) {
  const Mount& mount = mounts.mounts[index];
  const uint64_t device = mounts.filesystems[static_cast<size_t>(mount.filesystem)].device;
  for (size_t whose = 0; whose < others.size(); ++whose) {
    for (size_t other = 0; other < others[whose]->mounts.size(); ++other) {
      const Mount& shows = others[whose]->mounts[other];
      std::string rest;
      const bool has_it = others[whose]->filesystems[static_cast<size_t>(shows.filesystem)].device == device &&
                          shows.problem.empty() && below(mount.root, shows.root, rest) && is_plain(rest);
      if (has_it) return MountSource{Kind::kElsewhere, std::move(rest), static_cast<int>(other), whose};
    }
  }
  return std::nullopt;
}

std::optional<MountSource> source_of(const Mounts& mounts, size_t index, const MountOptions& options,
                                     const OtherMounts& others) {
  const bool root_is_given = index != 0 && !options.root.empty();
  const bool is_given = given_for(mounts.mounts[index], options) != nullptr;
  // What has been deleted is nowhere else: what has its name now is something else.
  if (!is_given && !mounts.mounts[index].problem.empty() && !(index == 0 && !options.root.empty())) return std::nullopt;
  if (auto found = elsewhere(mounts, index, others)) return found;
  if (root_is_given && !is_given) {
    if (auto of_root = through(mounts, index, 0)) return of_root;
  }
  if (auto own = own_source(mounts, index, options)) return own;
  for (size_t other = 0; other < mounts.mounts.size(); ++other) {
    auto out = through(mounts, index, other);
    if (out && own_source(mounts, other, options)) return out;
  }
  return std::nullopt;
}

std::string in_words(const Mounts& mounts, const Mount& mount) {
  const auto& filesystem = mounts.filesystems[static_cast<size_t>(mount.filesystem)];
  std::string out = fmt::format("mount {}: {} {} of {}", mount.point, filesystem.type, mount.root, filesystem.source);
  return mount.problem.empty() ? out : out + ", " + mount.problem;
}

std::string without_a_way(const Mounts& mounts, const Mount& mount) {
  return in_words(mounts, mount) +
         (mount.external.empty()
              ? fmt::format(", which ckpt sees nowhere outside and cannot make (--external 'mnt[{}]:PATH' of a restore "
                            "gives another in its place)",
                            mount.point)
              : fmt::format(", which is external: --external 'mnt[{}]:PATH' gives it", mount.external));
}

}  // namespace

bool can_be_made(const std::string& type) {
  static constexpr std::array<std::string_view, 8> kMade = {"proc",   "sysfs",   "devpts",   "mqueue",
                                                            "cgroup", "cgroup2", "devtmpfs", "overlay"};
  return is_one_of(type, kMade);
}

bool is_in_memory(const std::string& type) { return type == "tmpfs" || type == "ramfs"; }

bool is_read_only(const std::string& options) { return ("," + options + ",").find(",ro,") != std::string::npos; }

bool below(const std::string& path, const std::string& folder, std::string& rest) {
  const size_t length = folder == "/" ? 0 : folder.size();
  if (path.compare(0, length, folder, 0, length) != 0 || (path.size() > length && path[length] != '/')) return false;
  rest = path.size() > length ? path.substr(length + 1) : "";
  return true;
}

Result<std::map<std::string, std::string>> parse_external_mounts(const std::vector<std::string>& texts) {
  constexpr std::string_view kBegin = "mnt[";
  std::map<std::string, std::string> out;
  for (const std::string& text : texts) {
    const size_t close = text.find("]:");
    const bool good =
        text.starts_with(kBegin) && close != std::string::npos && close > kBegin.size() && close + 2 < text.size();
    if (!good) return fail(Code::kUsage, "--external " + text, "is not of the form mnt[KEY]:VALUE");
    const auto [known, is_new] = out.emplace(text.substr(kBegin.size(), close - kBegin.size()), text.substr(close + 2));
    if (!is_new) return fail(Code::kUsage, "--external " + text, "names what another --external names, too");
  }
  return out;
}

namespace {

Result<void> check_names(const Mounts& mounts, const MountOptions& options) {
  if (options.may_match_nothing) return {};
  for (const auto& [name, path] : options.external) {
    const auto has_name = [&name = name](const Mount& m) { return m.external == name || m.point == name; };
    if (std::none_of(mounts.mounts.begin(), mounts.mounts.end(), has_name))
      return fail(Code::kUsage, fmt::format("--external 'mnt[{}]:{}'", name, path),
                  "names neither a key of the dump nor a place where the processes had a mount");
  }
  return {};
}

}  // namespace

Result<std::vector<MountSource>> plan_mounts(const Mounts& mounts, const MountOptions& options,
                                             const OtherMounts& others) {
  if (mounts.mounts.empty()) {
    return Error(Code::kUnsupported, "the image",
                 "is of processes in a mount namespace that an older ckpt did not take")
        .with_hint("--into PID restores it into that of a running process");
  }
  CKPT_TRY(check_names(mounts, options));
  std::vector<MountSource> out;
  Error error(Code::kUnsupported, "the image", "is of processes in a mount namespace that cannot be made again here");
  for (size_t i = 0; i < mounts.mounts.size(); ++i) {
    auto source = source_of(mounts, i, options, others);
    if (source)
      out.push_back(std::move(*source));
    else
      error.causes.push_back(without_a_way(mounts, mounts.mounts[i]));
  }
  if (error.causes.empty()) return out;
  return std::move(error).with_hint("--into PID restores it into that of a running process");
}

std::vector<std::string> mounts_in_the_way(const Mounts& mounts, const OtherMounts& others) {
  MountOptions options;
  for (const Mount& mount : mounts.mounts) {
    if (!mount.external.empty()) options.external[mount.external] = "/";
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < mounts.mounts.size(); ++i) {
    if (!source_of(mounts, i, options, others)) out.push_back(in_words(mounts, mounts.mounts[i]));
  }
  return out;
}

namespace {

Result<void> validate_files(const std::vector<store::MemoryFile>& files) {
  constexpr size_t kMost = 1 << 20;
  if (files.size() > kMost) return fail(Code::kCorrupt, "mounts", "a file system in memory has too many files");
  for (size_t i = 0; i < files.size(); ++i) {
    const store::MemoryFile& file = files[i];
    const bool is_root = i == 0;
    if (is_root != file.path.empty() || !is_plain(file.path) || file.path.starts_with('/') ||
        file.path.ends_with('/') || (is_root && !S_ISDIR(file.mode)))
      return fail(Code::kCorrupt, file.path, "is no name in a file system in memory");
    if (file.link_of >= static_cast<int>(i) || (file.link_of >= 0 && S_ISDIR(file.mode)) ||
        (S_ISLNK(file.mode) && file.target.empty()) || file.has_bytes() != (file.space >= 0) ||
        file.size > uint64_t{1} << 46)
      return fail(Code::kCorrupt, file.path, "makes no sense in a file system in memory");
  }
  return {};
}

}  // namespace

Result<void> validate_mounts(const Mounts& mounts) {
  for (const store::MountedFilesystem& filesystem : mounts.filesystems) {
    if (!filesystem.files.empty() && !is_in_memory(filesystem.type))
      return fail(Code::kCorrupt, filesystem.type, "is no file system in memory, and has files");
    CKPT_TRY(validate_files(filesystem.files));
  }
  for (size_t i = 0; i < mounts.mounts.size(); ++i) {
    const Mount& mount = mounts.mounts[i];
    const bool in_range = mount.filesystem < static_cast<int>(mounts.filesystems.size()) && mount.filesystem >= 0 &&
                          mount.parent < static_cast<int>(i) && (mount.parent < 0) == (i == 0);
    if (!in_range) return fail(Code::kCorrupt, mount.point, "is a mount on nothing, or of nothing");
    std::string rest;
    const std::string& on = i == 0 ? mount.point : mounts.mounts[static_cast<size_t>(mount.parent)].point;
    // Of one that is bound from outside the root is no path that is used: "net:[4026531833]" of a bound namespace.
    const bool uses_root = mount.host.empty() && mount.external.empty();
    const bool absolute = mount.point.starts_with('/') && (!uses_root || mount.root.starts_with('/')) &&
                          (mount.host.empty() || mount.host.starts_with('/'));
    if (!absolute || !is_plain(mount.point) || (uses_root && !is_plain(mount.root)) || !is_plain(mount.host) ||
        !below(mount.point, on, rest) || (i == 0 && mount.point != "/"))
      return fail(Code::kCorrupt, mount.point, "is no place for a mount");
  }
  return {};
}

}  // namespace ckpt::state
