// The user namespace of a tree. ckpt's worker never enters it: it keeps the rights of whoever runs it, and knows all
// ids as they are outside. The processes enter it last (credentials/restore.h), or are born there (maker.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::state {

/// Of a process in another user namespace than this one. `kinds`: its other own namespaces, as in /proc/PID/ns.
/// kUnsupported: the namespace was not made in this process's, or one of the others belongs to neither.
Result<store::UserNamespace> read_user_namespace(int pid, const std::vector<std::string>& kinds);

/// Of a user namespace that was made in this process's: its id maps alone.
Result<store::UserNamespace> read_id_maps(int handle);

/// kCorrupt: maps that no kernel would take, owners of nothing.
Result<void> validate_user_namespace(const store::Namespaces& namespaces);

/// The number inside of an id outside; nothing: it has none.
std::optional<uint32_t> id_inside(const std::vector<store::IdRange>& map, uint32_t outside);
/// The id outside of a number inside.
std::optional<uint32_t> id_outside(const std::vector<store::IdRange>& map, uint32_t inside);
/// As /proc/PID/uid_map takes it.
std::string id_map_text(const std::vector<store::IdRange>& map);

/// What a process of the user namespace is before its own credentials are set: as whoever made it. Ids as outside.
struct Birth {
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;
};

/// That the processes of the tree are to be in.
struct TreeUser {
  UniqueFd handle;
  store::UserNamespace what;
  std::optional<Birth> birth;  ///< they are in it from the first moment; nothing: each enters it late
  bool owns(const std::string& kind) const;
};
/// For the rest of this process's life.
void set_tree_user(TreeUser user);
/// Null: ckpt's own.
const TreeUser* tree_user();

/// The control group namespace of the tree's processes, which ckpt itself is not in. -1: ckpt's own.
void set_tree_cgroup_namespace(UniqueFd handle);
int tree_cgroup_namespace();

}  // namespace ckpt::state
