// One worker's hands: writes items into .distcp files.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "formats/torch_dist/writer.h"
#include "lib/tensor/read.h"

namespace ckpt::torch_dist {

/// Memory that workers share for encoded shards. Nobody holds some while waiting for more, so all of them get their turn.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t bytes) : free_(bytes) {}
  void acquire(uint64_t bytes);
  void release(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t free_;
};

/// What all workers share.
struct WriteState {
  const Plan& plan;
  const WriteControl& control;
  unsigned workers;
  tensor::FileCache files;
  MemoryBudget budget;
  std::atomic<bool> clones{true};  ///< false once the file systems were seen not to share blocks
  bool drop_cache = false;         ///< the checkpoint is larger than what the page cache can usefully keep
};

class ItemWriter {
 public:
  ItemWriter(WriteState& state, int out, std::string name) : state_(state), out_(out), name_(std::move(name)) {}
  ~ItemWriter() { release(); }
  ItemWriter(const ItemWriter&) = delete;
  ItemWriter& operator=(const ItemWriter&) = delete;

  Result<void> write(const Item& item);

 private:
  Result<void> write_tensor(const Item& item);
  Result<void> write_object(const Item& item);
  Result<uint32_t> copy_run(const tensor::FileRange& run, uint64_t to);
  Result<uint32_t> copy_region(const tensor::Tensor& tensor, const tensor::Region& region, uint64_t to);
  Result<void> put(ByteSpan data, uint64_t to);
  void advance(uint64_t bytes);
  uint64_t lease(const tensor::Tensor& tensor, uint64_t region_bytes);
  void release();

  WriteState& state_;
  int out_;
  std::string name_;
  std::vector<std::byte> block_;
  std::optional<tensor::RegionReader> reader_;
  uint64_t leased_ = 0;
  uint64_t unsynced_ = 0, unsynced_at_ = 0;
};

}  // namespace ckpt::torch_dist
