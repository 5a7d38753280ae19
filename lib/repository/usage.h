// Which chunks what was pushed needs, and what each name alone holds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lib/base/progress.h"
#include "lib/repository/chunk_reader.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

/// A number for each chunk of the index, at its first place. Many threads may look at once; what they do with a number
/// is their affair (std::atomic_ref).
class ChunkNumbers {
 public:
  explicit ChunkNumbers(const Index& index);
  /// Null: the index has no such chunk. Valid as long as nothing is added to the index.
  uint32_t* of(const Id& id);

 private:
  const Index& index_;
  std::vector<std::vector<uint32_t>> numbers_;
};

/// Calls `each` for every chunk that these names need, their trees and lists too, with the number of the name; one that
/// occurs twice is told twice. On several threads, which also call `each`. `damage`: by name, what of its tree and
/// lists cannot be read. `go_on` is called now and then, by one thread at a time.
Result<void> for_each_needed(Repository& repository, const std::vector<Ref>& refs,
                             std::vector<std::optional<Error>>& damage,
                             const std::function<void(size_t name, const Id&)>& each,
                             const std::function<Result<void>()>& go_on = {});

/// Marks (1) what these need. kCorrupt: nobody can say what one of them needs.
Result<void> mark_needed(Repository& repository, const std::vector<Ref>& refs, ChunkNumbers& marks,
                         const std::function<Result<void>()>& go_on = {});

/// Bytes that a chunk takes in its pack: its share of a group that was compressed as a whole.
uint64_t stored_bytes(const PackTable& table, size_t chunk);

struct NameUsage {
  Ref ref;
  uint64_t alone = 0;           ///< bytes in the store that nothing else needs
  std::optional<Error> damage;  ///< its chunks are not known
};
struct StoreUsage {
  std::vector<NameUsage> names;  ///< in the order of their times
  std::vector<Error> damaged;    ///< names that cannot be read
  uint64_t bytes = 0;            ///< of all names that are not damaged, as they were pushed; UINT64_MAX: too many
  uint64_t stored = 0;           ///< of packs and index
  uint64_t unneeded = 0;         ///< of those, what no name needs
};
Result<StoreUsage> measure_usage(Repository& repository);

}  // namespace ckpt::repository
