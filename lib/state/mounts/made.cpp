#include "lib/state/mounts/made.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace ckpt::state {

namespace {

struct Made {
  dev_t now;
  UniqueFd root;
};
std::map<uint64_t, Made> g_made;
std::map<int, UniqueFd> g_terminals;
std::vector<UniqueFd> g_overlays;

}  // namespace

void add_made_filesystem(uint64_t before, dev_t now, UniqueFd root) {
  g_made.insert_or_assign(before, Made{now, std::move(root)});
}

std::optional<dev_t> made_device(uint64_t before) {
  const auto found = g_made.find(before);
  return found == g_made.end() ? std::nullopt : std::optional(found->second.now);
}

int made_root(uint64_t before) {
  const auto found = g_made.find(before);
  return found == g_made.end() ? -1 : found->second.root.get();
}

void add_made_overlay(UniqueFd root) { g_overlays.push_back(std::move(root)); }

bool is_on_made_overlay(int fd) {
  struct statfs theirs {};
  if (g_overlays.empty() || ::fstatfs(fd, &theirs) != 0 || theirs.f_type != OVERLAYFS_SUPER_MAGIC) return false;
  return std::any_of(g_overlays.begin(), g_overlays.end(), [&](const UniqueFd& root) {
    struct statfs made {};
    return ::fstatfs(root.get(), &made) == 0 && std::memcmp(&made.f_fsid, &theirs.f_fsid, sizeof made.f_fsid) == 0;
  });
}

void reserve_terminal(int index, UniqueFd master) { g_terminals[index] = std::move(master); }

bool is_terminal_reserved(int index) { return g_terminals.count(index) != 0; }

UniqueFd take_reserved_terminal(int index) {
  const auto found = g_terminals.find(index);
  if (found == g_terminals.end()) return {};
  UniqueFd out = std::move(found->second);
  g_terminals.erase(found);
  return out;
}

}  // namespace ckpt::state
