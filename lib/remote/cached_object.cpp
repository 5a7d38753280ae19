#include "lib/remote/cached_object.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

namespace ckpt::remote {

namespace {

/// A read whose end somebody waits for: it fails where memory runs out, and does not throw.
template <class Read>
Result<void> without_throwing(Read read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    return fail(Code::kNoRoom, "", "out of memory");
  }
}

/// How often this process and those that it descends from were forked: a pid is no mark, each namespace has a 1.
std::atomic<uint64_t> g_generation = 0;

uint64_t generation() {
  static const int once = ::pthread_atfork(nullptr, nullptr, [] { ++g_generation; });
  (void)once;
  return g_generation;
}

}  // namespace

struct ObjectSource::Used {
  explicit Used(std::unique_ptr<Backend> b) : backend(std::move(b)), cache(*backend), made_in(generation()) {}
  std::unique_ptr<Backend> backend;
  BlockCache cache;
  const uint64_t made_in;
};

ObjectSource::ObjectSource(std::unique_ptr<Backend> backend, Open open)
    : open_(std::move(open)), used_(new Used(std::move(backend))) {}

ObjectSource::~ObjectSource() {
  Used* used = used_;
  if (used->made_in == generation()) delete used;
}

Result<void> ObjectSource::read(size_t number, const Object& object, uint64_t offset, MutableByteSpan out) {
  Used* used = used_;
  if (used->made_in != generation()) {
    CKPT_TRY_ASSIGN(used, renew(used));
  }
  return used->cache.read(number, object, offset, out);
}

Result<ObjectSource::Used*> ObjectSource::renew(Used* of_parent) {
  CKPT_TRY_ASSIGN(std::unique_ptr<Backend> backend, open_());
  (void)backend->list(1);  // where the bucket is, as the parent learned it; what is wrong the read tells
  auto fresh = std::make_unique<Used>(std::move(backend));
  // Of several threads one brings its own.
  return used_.compare_exchange_strong(of_parent, fresh.get()) ? fresh.release() : of_parent;
}

Result<void> BlockCache::read(size_t number, const Object& object, uint64_t offset, MutableByteSpan out) {
  if (out.size() >= 2 * kBlock) return read_long(object, offset, out);
  std::unique_lock lock(mutex_);
  while (!out.empty()) {
    const uint64_t index = offset / kBlock, inside = offset % kBlock;
    std::shared_ptr<Block> block = want(number, object, index, lock);
    const bool goes_on = fetch_ahead(number, object, index, lock);
    changed_.wait(lock, [&] { return block->ready; });
    if (block->error) {
      drop({number, index});  // the next one who asks has another try
      return *block->error;
    }
    const size_t taken = std::min<uint64_t>(out.size(), block->bytes.size() - inside);
    lock.unlock();  // nobody changes a block that is ready
    std::memcpy(out.data(), block->bytes.data() + inside, taken);
    lock.lock();
    if (goes_on && inside + taken == block->bytes.size()) pass({number, index});
    out = out.subspan(taken);
    offset += taken;
  }
  return {};
}

/// Past the cache, in parts side by side. The caller waits for its own parts alone.
Result<void> BlockCache::read_long(const Object& object, uint64_t offset, MutableByteSpan out) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable done;
    size_t open = 0;
    std::optional<Error> error;
  } waiting;
  for (uint64_t at = 0; at < out.size(); at += kPart) {
    MutableByteSpan part = out.subspan(at, std::min<uint64_t>(kPart, out.size() - at));
    {
      std::lock_guard lock(waiting.mutex);
      ++waiting.open;
    }
    pool_.submit([this, &object, &waiting, part, from = offset + at]() -> Result<void> {
      Result<void> read = without_throwing([&] { return backend_.read(object, from, part); });
      std::lock_guard lock(waiting.mutex);
      if (!read && !waiting.error) waiting.error = read.error();
      --waiting.open;
      waiting.done.notify_all();
      return {};
    });
  }
  std::unique_lock lock(waiting.mutex);
  waiting.done.wait(lock, [&] { return waiting.open == 0; });
  if (waiting.error) return *waiting.error;
  return {};
}

/// The block, there or on its way.
std::shared_ptr<BlockCache::Block> BlockCache::want(size_t number, const Object& object, uint64_t index,
                                                    std::unique_lock<std::mutex>& lock) {
  const Key key{number, index};
  if (auto found = blocks_.find(key); found != blocks_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second.recent);
    return found->second.block;
  }
  auto block = std::make_shared<Block>();
  recent_.push_front(key);
  blocks_[key] = {block, recent_.begin()};
  drop_oldest();
  lock.unlock();
  pool_.submit([this, block, object, index]() -> Result<void> {
    std::vector<std::byte> bytes = take_spare();
    Result<void> read = without_throwing([&] {
      bytes.resize(std::min(kBlock, object.size - index * kBlock));
      return backend_.read(object, index * kBlock, bytes);
    });
    std::lock_guard done(mutex_);
    if (read)
      block->bytes = std::move(bytes);
    else
      block->error = read.error();
    block->ready = true;
    changed_.notify_all();
    return {};
  });
  lock.lock();
  return block;
}

/// Whether somebody reads the object front to back, and has come here.
bool BlockCache::fetch_ahead(size_t number, const Object& object, uint64_t index, std::unique_lock<std::mutex>& lock) {
  std::list<Stream>& streams = streams_[number];
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const Stream& stream) {
    return index == stream.next || index + 1 == stream.next;
  });
  if (found == streams.end()) {
    streams.push_front({index + 1, 1});
    if (streams.size() > kStreams) streams.pop_back();
    return false;
  }
  streams.splice(streams.begin(), streams, found);
  if (index + 1 == found->next) return found->ahead > 1;  // the same block again
  const uint64_t most = std::max<uint64_t>(kMostAhead / streams.size(), kThreads);
  const uint64_t ahead = found->ahead = std::min(found->ahead * 2, most);
  found->next = index + 1;
  const uint64_t blocks = (object.size + kBlock - 1) / kBlock;
  for (uint64_t next = index + 1; next < std::min(blocks, index + 1 + ahead); ++next) want(number, object, next, lock);
  return true;
}

/// Memory of blocks that were dropped: new one costs more than the copy into it.
std::vector<std::byte> BlockCache::take_spare() {
  std::lock_guard lock(mutex_);
  std::vector<std::byte> out;
  if (!spare_.empty()) out = std::move(spare_.back()), spare_.pop_back();
  return out;
}

/// Read to its end: who reads front to back does not come again.
void BlockCache::pass(const Key& key) {
  if (std::find(passed_.begin(), passed_.end(), key) != passed_.end()) return;
  passed_.push_back(key);
  if (passed_.size() <= kPassed) return;
  drop(passed_.front());
  passed_.pop_front();
}

void BlockCache::drop_oldest() {
  while (recent_.size() > kMemory / kBlock) drop(recent_.back());
}

void BlockCache::drop(const Key& key) {
  const auto entry = blocks_.find(key);
  if (entry == blocks_.end()) return;
  Block& block = *entry->second.block;
  // Nobody reads it, and nobody can begin to.
  if (block.ready && entry->second.block.use_count() == 1 && spare_.size() < kPassed)
    spare_.push_back(std::move(block.bytes));
  recent_.erase(entry->second.recent);
  blocks_.erase(entry);
}

}  // namespace ckpt::remote
