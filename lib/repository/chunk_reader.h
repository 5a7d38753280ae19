// Chunks out of packs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/repository/repository.h"

namespace ckpt::repository {

/// Decompressed into `out`, which becomes `group.length` bytes long; kCorrupt. `stored` is as it lies in the pack.
Result<void> unpack_group(const Group& group, ByteSpan stored, const std::string& subject, std::vector<std::byte>& out);

/// For one thread. What it hands out has been hashed again: it is what the id says, whatever the store has.
/// Memory: reads of Backend::good_read, kReads bytes of all threads together but at least kFewest each, for a file's
/// chunks come from as many packs as it has versions; and kUnpacked bytes of groups.
class ChunkReader {
 public:
  static constexpr size_t kReads = 64 << 20, kFewest = 8, kUnpacked = 6 << 20;

  explicit ChunkReader(Repository& repository);
  /// Valid until the next call. kCorrupt: no pack has it, or all that do are damaged (the message names them);
  /// kNotFound: the pack went since the index was read.
  Result<ByteSpan> read(const Id& id, uint32_t length, const std::string& subject);
  /// Bytes that came from the store.
  uint64_t fetched() const { return fetched_; }

 private:
  struct Span {
    uint32_t pack = 0;
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  struct Unpacked {
    uint32_t pack = 0, first = 0;  ///< the group, by its first chunk
    std::vector<std::byte> bytes;
  };
  Result<ByteSpan> read_at(const ChunkPlace& place);
  Result<ByteSpan> fetch(uint32_t pack, const Group& group);

  Repository& repository_;
  std::list<Span> spans_;  ///< the last one used first
  std::list<Unpacked> groups_;
  size_t most_spans_bytes_ = 0, spans_bytes_ = 0, unpacked_ = 0;
  uint64_t fetched_ = 0;
};

/// Readers for the jobs of many threads: each takes one that nobody has, and gives it back.
class ChunkReaders {
 public:
  explicit ChunkReaders(Repository& repository) : repository_(repository) {}
  template <class Work>
  auto with(Work work) {
    std::unique_ptr<ChunkReader> reader = take();
    auto done = work(*reader);
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(reader));
    return done;
  }
  /// By those that nobody has.
  uint64_t fetched() const;

 private:
  std::unique_ptr<ChunkReader> take();
  Repository& repository_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ChunkReader>> idle_;
};

/// Whether this says only that a pack went since the index was read: `ckpt gc`, and what was needed of it lies
/// elsewhere.
bool is_moved(const Error& error);
/// Does `work`, and does it again where something has moved under it.
template <class Work>
auto unless_moved(Work work) {
  constexpr int kAttempts = 3;
  auto done = work();
  for (int i = 1; i < kAttempts && !done && is_moved(done.error()); ++i) done = work();
  return done;
}

/// The tree of a name. Errors as of ChunkReader::read, and kCorrupt: it cannot be, or has other files or bytes than the
/// name says.
Result<std::vector<Entry>> read_tree(const Ref& ref, ChunkReader& reader, const std::string& subject);

/// Every chunk of a file and of its lists, in order. `each` may be called with ids of lists, too: `is_list` says so.
Result<void> for_each_chunk(const Entry& entry, ChunkReader& reader, const std::string& subject,
                            const std::function<Result<void>(const Extent&, bool is_list)>& each);

}  // namespace ckpt::repository
