#include "lib/state/mounts/overlay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "lib/base/text.h"
#include "lib/state/mounts/plan.h"

namespace ckpt::state {

std::optional<OverlayFolders> overlay_folders(const std::string& options) {
  constexpr std::array<std::string_view, 5> kFolders = {"lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir"};
  OverlayFolders out;
  for (std::string_view rest = options; !rest.empty();) {
    const std::string_view word = take_field(rest, ',');
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    if (std::find(kFolders.begin(), kFolders.end(), key) == kFolders.end()) {
      if (word.starts_with('/')) return std::nullopt;  // the rest of a path with a comma
      continue;
    }
    if (equals == std::string_view::npos || word.find('\\') != std::string_view::npos) return std::nullopt;
    if (key != "lowerdir" && word.find(':') != std::string_view::npos) return std::nullopt;
    for (std::string_view paths = word.substr(equals + 1); !paths.empty();) {
      const std::string_view path = take_field(paths, ':');
      if (path.empty()) continue;  // "::", in front of layers that have data only
      if (!path.starts_with('/')) return std::nullopt;
      const bool is_layer = key.starts_with("lowerdir") || key == "upperdir";
      auto& list = is_layer ? out.layers : out.others;
      list.emplace(key == "upperdir" ? list.begin() : list.end(), path);
    }
  }
  if (out.layers.empty()) return std::nullopt;
  return out;
}

namespace {

bool look_at(int folder, const char* name, struct statx& out) {
  constexpr unsigned kWanted = STATX_TYPE | STATX_SIZE | STATX_MTIME;
  return ::statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, kWanted, &out) == 0;
}

/// What is mounted there hides what would be compared. ".": the folder is what is meant.
bool is_hidden(const struct statx& st, const char* name) {
  return std::string_view(name) != "." && (st.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool is_alike(const struct statx& one, const struct statx& other) {
  const bool is_folder = S_ISDIR(one.stx_mode);
  return (one.stx_mode & S_IFMT) == (other.stx_mode & S_IFMT) && (is_folder || one.stx_size == other.stx_size) &&
         one.stx_rdev_major == other.stx_rdev_major && one.stx_rdev_minor == other.stx_rdev_minor &&
         one.stx_mtime.tv_sec == other.stx_mtime.tv_sec && one.stx_mtime.tv_nsec == other.stx_mtime.tv_nsec;
}

/// It may be written to just now: then it is looked at again.
bool shows_entry(int overlay, const std::vector<UniqueFd>& layers, const char* name) {
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    struct statx shown {}, below {};
    if (!look_at(overlay, name, shown)) return errno == ENOENT;
    const bool found = std::any_of(layers.begin(), layers.end(),
                                   [&](const UniqueFd& layer) { return look_at(layer.get(), name, below); });
    if (found && (is_hidden(shown, name) || is_hidden(below, name) || is_alike(shown, below))) return true;
  }
  return false;
}

}  // namespace

bool shows_layers(int overlay, const std::vector<UniqueFd>& layers) {
  if (!shows_entry(overlay, layers, ".")) return false;
  std::error_code ec;
  std::filesystem::directory_iterator it(fmt::format("/proc/self/fd/{}", overlay), ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    if (!shows_entry(overlay, layers, it->path().filename().c_str())) return false;
  }
  return !ec;
}

std::string overlay_mount_options(const std::string& options, OverlayUse use) {
  constexpr std::array<std::string_view, 3> kNone = {"rw", "ro", "seclabel"};  // given in other ways, if at all
  constexpr std::array<std::string_view, 7> kOfUpper = {"upperdir", "workdir",  "index", "nfs_export",
                                                        "uuid",     "volatile", "fsync"};
  const bool only_read = use == OverlayUse::kOnlyRead;
  std::string upper, out;
  for (std::string_view rest = options; !rest.empty();) {
    const std::string_view word = take_field(rest, ',');
    const std::string_view name = word.substr(0, word.find('='));
    if (name == "upperdir" && name != word) upper = word.substr(name.size() + 1);
    if (std::find(kNone.begin(), kNone.end(), word) != kNone.end()) continue;
    if (only_read && std::find(kOfUpper.begin(), kOfUpper.end(), name) != kOfUpper.end()) continue;
    out += (out.empty() ? "" : ",") + std::string(word);
  }
  if (use == OverlayUse::kTry)
    return upper.empty() ? "" : fmt::format("index=on,lowerdir={0},upperdir={0},workdir={0}", upper);
  if (!only_read || upper.empty()) return out;
  // What is uppermost hides what is below it in a folder that is only read, too.
  const std::string text = "," + out;
  if (const size_t at = text.find(",lowerdir="); at != std::string::npos)
    return "index=off," + out.insert(at + std::string_view("lowerdir=").size(), upper + ":");
  return fmt::format("index=off,lowerdir+={},{}", upper, out);
}

bool can_be_overlay_options(const std::string& options) {
  constexpr size_t kMost = 4095;
  return std::max(options.size(), overlay_mount_options(options, OverlayUse::kTry).size()) <= kMost;
}

namespace {

/// A mount namespace that has just ended lets go of what was mounted in it soon after.
bool is_upper_free(const std::string& source, const std::string& trial, const char* place) {
  constexpr int kTries = 100;
  constexpr timespec kPause{0, 20'000'000};
  for (int i = 0; i < kTries; ++i) {
    if (::mount(source.c_str(), place, "overlay", 0, trial.c_str()) == 0) return errno = EIO, false;  // never
    if (errno != EBUSY) return true;
    ::nanosleep(&kPause, nullptr);
  }
  return errno = EBUSY, false;
}

}  // namespace

UniqueFd mount_overlay(const std::string& source, const std::string& options, bool only_read, int root,
                       const char* place) {
  const std::string trial = overlay_mount_options(options, OverlayUse::kTry);
  const std::string given =
      overlay_mount_options(options, only_read ? OverlayUse::kOnlyRead : OverlayUse::kItself);
  if (!can_be_overlay_options(options)) return errno = E2BIG, UniqueFd();
  const UniqueFd old(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!old || ::fchdir(root) != 0 || ::chroot(".") != 0 || ::fchdir(old.get()) != 0) return {};
  const unsigned long flags = is_read_only(options) || only_read ? MS_RDONLY : 0;
  const bool made = (trial.empty() || is_upper_free(source, trial, place)) &&
                    ::mount(source.c_str(), place, "overlay", flags, given.c_str()) == 0;
  const int error = errno;
  UniqueFd out(made ? ::openat(old.get(), place, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1);
  if (::chroot(".") != 0) return {};
  if (!made) errno = error;
  return out;
}

}  // namespace ckpt::state
