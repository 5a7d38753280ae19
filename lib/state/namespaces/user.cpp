#include "lib/state/namespaces/user.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/state/run_as.h"

namespace ckpt::state {

namespace {

using store::IdRange;

constexpr size_t kMostRanges = 340;  // UID_GID_MAP_MAX_EXTENTS

bool take_number(std::string_view& line, uint32_t& out) {
  while (line.starts_with(' ')) line.remove_prefix(1);
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), out);
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return error == std::errc();
}

constexpr uint64_t kMostBytes = 1 << 16;

Result<std::vector<IdRange>> parse_id_map(const std::string& text, const char* name) {
  std::vector<IdRange> out;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = take_field(rest, '\n');
    IdRange& range = out.emplace_back();
    if (!take_number(line, range.inside) || !take_number(line, range.outside) || !take_number(line, range.count))
      return fail(Code::kIo, name, fmt::format("\"{}\" is not in the form that this ckpt knows", text));
  }
  return out;
}

Result<std::vector<IdRange>> read_id_map(int pid, const char* name) {
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(fmt::format("/proc/{}/{}", pid, name), kMostBytes));
  return parse_id_map(text, name);
}

bool is_same(int one, int other) {
  struct stat a {}, b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

bool overlap(uint64_t a, uint64_t b, const IdRange& first, const IdRange& second) {
  return a < b + second.count && b < a + first.count;
}

bool is_id_map(const std::vector<IdRange>& map) {
  constexpr uint64_t kIds = uint64_t{1} << 32;
  if (map.size() > kMostRanges) return false;
  for (size_t i = 0; i < map.size(); ++i) {
    const IdRange& range = map[i];
    if (range.count == 0 || uint64_t{range.inside} + range.count > kIds - 1 ||
        uint64_t{range.outside} + range.count > kIds - 1)
      return false;
    for (size_t other = 0; other < i; ++other) {
      if (overlap(range.inside, map[other].inside, range, map[other]) ||
          overlap(range.outside, map[other].outside, range, map[other]))
        return false;
    }
  }
  return true;
}

Result<UniqueFd> open_namespace(const std::string& process, const std::string& kind) {
  return io::open_file(fmt::format("/proc/{}/ns/{}", process, kind), O_RDONLY);
}

std::optional<uint32_t> other_side(const std::vector<IdRange>& map, uint32_t id, uint32_t IdRange::*from,
                                   uint32_t IdRange::*to) {
  for (const IdRange& range : map) {
    if (id >= range.*from && id - range.*from < range.count) return range.*to + (id - range.*from);
  }
  return std::nullopt;
}

TreeUser& the_tree_user() {
  static TreeUser user;
  return user;
}
int g_cgroup_namespace = -1;

}  // namespace

Result<store::UserNamespace> read_user_namespace(int pid, const std::vector<std::string>& kinds) {
  store::UserNamespace out;
  CKPT_TRY_ASSIGN(const UniqueFd theirs, open_namespace(std::to_string(pid), "user"));
  CKPT_TRY_ASSIGN(const UniqueFd ours, open_namespace("self", "user"));
  const UniqueFd parent(::ioctl(theirs.get(), NS_GET_PARENT));
  if (!parent || !is_same(parent.get(), ours.get()))
    return fail(Code::kUnsupported, "", "was made within another user namespace than ckpt's, which is not supported");
  if (::ioctl(theirs.get(), NS_GET_OWNER_UID, &out.owner) != 0)
    return sys_error("user namespace", "cannot be asked for its owner");
  for (const std::string& kind : kinds) {
    if (kind == "user") continue;
    CKPT_TRY_ASSIGN(const UniqueFd one, open_namespace(std::to_string(pid), kind));
    const UniqueFd owner(::ioctl(one.get(), NS_GET_USERNS));
    if (owner && is_same(owner.get(), theirs.get())) {
      out.owns.push_back(kind);
    } else if (!owner || !is_same(owner.get(), ours.get())) {
      return fail(Code::kUnsupported, "",
                  fmt::format("is not that of its {} namespace, which belongs to a further one: not supported", kind));
    }
  }
  CKPT_TRY_ASSIGN(out.uids, read_id_map(pid, "uid_map"));
  CKPT_TRY_ASSIGN(out.gids, read_id_map(pid, "gid_map"));
  constexpr uint64_t kLimit = 64;
  CKPT_TRY_ASSIGN(const std::string setgroups, io::read_file(fmt::format("/proc/{}/setgroups", pid), kLimit));
  out.denies_setgroups = setgroups.starts_with("deny");
  return out;
}

Result<store::UserNamespace> read_id_maps(int handle) {
  // From inside, too, the kernel shows the ids of the namespace around it.
  auto read_inside = [&](const char* path) -> Result<std::string> {
    CKPT_TRY_ASSIGN(const restore::CallResult opened, restore::run_as({}, [&] {
                      if (::setns(handle, CLONE_NEWUSER) != 0) return -errno;
                      const int file = ::open(path, O_RDONLY | O_CLOEXEC);
                      return file < 0 ? -errno : file;
                    }));
    if (opened.value < 0) return sys_error(-opened.value, "user namespace", "cannot be asked for its id maps");
    const UniqueFd file(opened.value);
    return io::read_all(file.get(), kMostBytes, path);
  };
  store::UserNamespace out;
  CKPT_TRY_ASSIGN(const std::string uids, read_inside("/proc/self/uid_map"));
  CKPT_TRY_ASSIGN(const std::string gids, read_inside("/proc/self/gid_map"));
  CKPT_TRY_ASSIGN(out.uids, parse_id_map(uids, "uid_map"));
  CKPT_TRY_ASSIGN(out.gids, parse_id_map(gids, "gid_map"));
  return out;
}

Result<void> validate_user_namespace(const store::Namespaces& namespaces) {
  const store::UserNamespace& user = namespaces.user;
  if (!is_id_map(user.uids) || !is_id_map(user.gids) || user.owner == ~0u)
    return fail(Code::kCorrupt, "user namespace", "has id maps that make no sense");
  for (const std::string& kind : user.owns) {
    if (!namespaces.has(kind) || !namespaces.has("user"))
      return fail(Code::kCorrupt, "user namespace", "owns a namespace that is not there");
  }
  if (namespaces.has("user")) return {};
  const bool nothing = user.uids.empty() && user.gids.empty() && !user.denies_setgroups;
  return nothing ? Result<void>() : fail(Code::kCorrupt, "user namespace", "has id maps, and is not there");
}

std::optional<uint32_t> id_inside(const std::vector<IdRange>& map, uint32_t outside) {
  return other_side(map, outside, &IdRange::outside, &IdRange::inside);
}

std::optional<uint32_t> id_outside(const std::vector<IdRange>& map, uint32_t inside) {
  return other_side(map, inside, &IdRange::inside, &IdRange::outside);
}

std::string id_map_text(const std::vector<IdRange>& map) {
  std::string out;
  for (const IdRange& range : map) out += fmt::format("{} {} {}\n", range.inside, range.outside, range.count);
  return out;
}

bool TreeUser::owns(const std::string& kind) const {
  return std::find(what.owns.begin(), what.owns.end(), kind) != what.owns.end();
}

void set_tree_user(TreeUser user) { the_tree_user() = std::move(user); }
const TreeUser* tree_user() { return the_tree_user().handle ? &the_tree_user() : nullptr; }

void set_tree_cgroup_namespace(UniqueFd handle) { g_cgroup_namespace = handle.release(); }
int tree_cgroup_namespace() { return g_cgroup_namespace; }

}  // namespace ckpt::state
