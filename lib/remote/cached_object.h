// Objects read by blocks: what was read a moment ago, and what will be read next, costs no request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "lib/base/virtual_file.h"
#include "lib/base/worker_pool.h"
#include "lib/remote/backend.h"

namespace ckpt::remote {

/// Blocks of all objects of a backend, the least recently used dropped first: memory stays below kMemory and what is on
/// its way. Requests are made by its own threads, so many at once as it has.
class BlockCache {
 public:
  static constexpr uint64_t kBlock = 1 << 20;
  static constexpr uint64_t kMemory = 96 << 20;
  static constexpr unsigned kThreads = 8;
  static constexpr uint64_t kMostAhead = 16;     ///< blocks that are fetched before somebody asks for them
  static constexpr size_t kStreams = 8;          ///< that read one object at a time, each front to back
  static constexpr size_t kPassed = 16;          ///< blocks that are kept behind them: pieces share one where they meet
  static constexpr uint64_t kPart = 8 << 20;     ///< of a long read: as much as one request brings

  /// `backend` must outlive it.
  explicit BlockCache(Backend& backend) : backend_(backend), pool_(kThreads, 4096) {}

  /// Thread-safe. `number` tells objects apart.
  Result<void> read(size_t number, const Object& object, uint64_t offset, MutableByteSpan out);

 private:
  struct Block {
    std::vector<std::byte> bytes;
    std::optional<Error> error;
    bool ready = false;
  };
  using Key = std::pair<size_t, uint64_t>;
  struct Entry {
    std::shared_ptr<Block> block;
    std::list<Key>::iterator recent;
  };
  /// Somebody who reads an object front to back: threads that copy parts of one are several.
  struct Stream {
    uint64_t next;   ///< the block behind the last one that was read
    uint64_t ahead;  ///< grows meanwhile
  };

  Result<void> read_long(const Object& object, uint64_t offset, MutableByteSpan out);
  std::shared_ptr<Block> want(size_t number, const Object& object, uint64_t index, std::unique_lock<std::mutex>& lock);
  bool fetch_ahead(size_t number, const Object& object, uint64_t index, std::unique_lock<std::mutex>& lock);
  void pass(const Key& key);
  void drop_oldest();
  void drop(const Key& key);
  std::vector<std::byte> take_spare();

  Backend& backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Entry> blocks_;
  std::list<Key> recent_;  ///< the last one used first
  std::map<size_t, std::list<Stream>> streams_;  ///< of each object; the last one used first
  std::deque<Key> passed_;
  std::vector<std::vector<std::byte>> spare_;
  WorkerPool pool_;  ///< last: its threads use the rest
};

/// A backend with its cache. A fork of this process has neither their threads nor their connections: there both are
/// made anew when they are first needed, and what was there is left alone.
class ObjectSource {
 public:
  using Open = std::function<Result<std::unique_ptr<Backend>>()>;

  /// `open`: the backend again.
  ObjectSource(std::unique_ptr<Backend> backend, Open open);
  ~ObjectSource();
  ObjectSource(const ObjectSource&) = delete;
  ObjectSource& operator=(const ObjectSource&) = delete;

  /// Thread-safe. `number` tells objects apart.
  Result<void> read(size_t number, const Object& object, uint64_t offset, MutableByteSpan out);

 private:
  struct Used;
  Result<Used*> renew(Used* of_parent);
  Open open_;
  std::atomic<Used*> used_;
};

/// One object as a file.
class CachedObject final : public io::VirtualFile {
 public:
  CachedObject(std::shared_ptr<ObjectSource> source, size_t number, Object object)
      : source_(std::move(source)), number_(number), object_(std::move(object)) {}
  uint64_t size() const override { return object_.size; }
  Result<void> read(uint64_t offset, MutableByteSpan out) const override {
    return source_->read(number_, object_, offset, out);
  }

 private:
  std::shared_ptr<ObjectSource> source_;
  size_t number_;
  Object object_;
};

}  // namespace ckpt::remote
