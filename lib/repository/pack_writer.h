// Chunks on their way into packs: grouped and compressed by each thread, put together and stored by all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/repository/backend.h"
#include "lib/repository/pack.h"

namespace ckpt::repository {

/// Memory: the pack that is being filled and at most kStoring that are being stored.
class PackWriter {
 public:
  static constexpr size_t kPackSize = 24 << 20;
  static constexpr unsigned kStoring = 2;

  /// `push`: 32 hex digits that nobody else uses.
  PackWriter(Backend& backend, std::string push);
  /// What was not finished is taken back; what `keep` was called for stays.
  ~PackWriter();

  /// One thread's chunks.
  class Stream {
   public:
    explicit Stream(PackWriter& writer);
    ~Stream();
    /// A chunk that is nowhere yet.
    Result<void> add(const Id& id, ByteSpan content);
    /// The last group, too.
    Result<void> flush();

   private:
    struct Compressor;
    PackWriter& writer_;
    std::unique_ptr<Compressor> compressor_;
    std::vector<std::byte> content_;
    std::vector<std::pair<Id, uint32_t>> chunks_;
  };

  /// After the last stream's `flush`: all packs are durable, then their index is.
  Result<void> finish();
  /// Somebody may rely on the packs from now on.
  void keep() { kept_ = true; }
  uint64_t chunks() const { return chunks_; }
  uint64_t bytes() const { return bytes_; }    ///< before compression
  uint64_t stored() const { return stored_; }  ///< packs and index
  /// Of what was finished.
  const std::vector<IndexedPack>& packs() const { return packs_; }

 private:
  struct Pack {
    std::string bytes;
    PackTable table;
  };
  Result<void> append(ByteSpan stored, const Group& group, const std::vector<std::pair<Id, uint32_t>>& chunks);
  Result<void> seal();

  Backend& backend_;
  const std::string push_;
  std::mutex mutex_;  ///< of all that follows
  Pack pack_;
  uint32_t number_ = 0;
  std::vector<std::string> names_;  ///< of packs that were stored, or may have been
  std::vector<IndexedPack> packs_;
  uint64_t chunks_ = 0, bytes_ = 0, stored_ = 0;
  bool kept_ = false;
  std::mutex spare_mutex_;
  std::vector<std::string> spare_;    ///< memory of packs that were stored, for the next ones
  std::unique_ptr<WorkerPool> pool_;  ///< last: its threads use the rest
};

/// Index objects of these packs, each of at most kMaxIndex bytes. Bytes that were stored.
Result<uint64_t> put_index(Backend& backend, const std::vector<const IndexedPack*>& packs);

}  // namespace ckpt::repository
