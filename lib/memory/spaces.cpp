#include "lib/memory/spaces.h"

#include <sys/stat.h>

#include <map>
#include <set>
#include <tuple>

namespace ckpt::capture {

namespace {

enum class Of { kProcess, kSharedMemory, kFile, kDevice, kMemoryFile };
using Key = std::tuple<Of, uint64_t, uint64_t>;

/// Calls `visit(key, space)` for everything of a tree that has pages of its own.
template <class Tree, class Visit>
void for_each_space(Tree& tree, Visit visit) {
  for (auto& process : tree.processes) {
    if (!process.zombie && process.memory_of < 0)
      visit(Key{Of::kProcess, static_cast<uint64_t>(process.pid), 0}, process.space);
  }
  for (auto& memory : tree.devices)
    visit(Key{Of::kDevice, static_cast<uint64_t>(tree.processes[static_cast<size_t>(memory.process)].pid), 0},
          memory.space);
  for (auto& memory : tree.shared_memory)
    visit(Key{Of::kSharedMemory, static_cast<uint64_t>(memory.kind), memory.inode}, memory.space);
  std::set<std::pair<uint64_t, uint64_t>> seen;  // by its first name
  for (auto& file : tree.files) {
    // A preliminary number: its content was asked for (state/files/contents.h).
    const bool has_bytes = file.space >= 0 || (file.deleted && S_ISREG(file.mode) && file.other_name.empty());
    if (has_bytes && seen.emplace(file.device, file.inode).second)
      visit(Key{Of::kFile, file.device, file.inode}, file.space);
  }
  for (auto* filesystem : filesystems_of(tree.namespaces)) {
    for (auto& file : filesystem->files) {
      if (file.has_bytes()) visit(Key{Of::kMemoryFile, filesystem->device, file.inode}, file.space);
    }
  }
}

}  // namespace

Result<void> number_spaces(store::TreeImage& tree, const std::vector<const store::TreeImage*>& earlier) {
  std::map<Key, int> known;
  int next = 0;
  for (const store::TreeImage* parent : earlier) {
    for_each_space(*parent, [&](const Key& key, int space) {
      known.emplace(key, space);
      next = std::max(next, space + 1);
    });
  }
  for_each_space(tree, [&](const Key& key, int& space) {
    auto old = known.find(key);
    space = old != known.end() ? old->second : next++;
  });
  // Numbers of a parent's spaces that are gone are not used again, or their pages would show through.
  if (next > store::kMaxSpaces) {
    return Error(Code::kNoRoom, "", "has more address spaces and shared memories than an image can hold")
        .with_hint("dump without --prev");
  }
  return {};
}

}  // namespace ckpt::capture
