#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "lib/base/threads.h"
#include "lib/base/transport.h"

namespace ckpt {

namespace {

/// A message that waits to be fetched: the receiver copies it from where the sender has it.
struct Parcel {
  ByteSpan data;
  enum class State { kWaiting, kCopied, kFetched } state = State::kWaiting;  ///< kCopied: at this moment
};

/// What all ranks share. A rank that has ended, well or not, makes nobody wait for it.
struct Hub {
  explicit Hub(uint32_t ranks) : gathered(ranks), boxes(ranks) {}

  std::mutex mutex;
  std::condition_variable changed;
  uint64_t round = 0;  ///< of all_gather
  uint32_t arrived = 0;
  bool gone = false;  ///< somebody has left
  std::vector<std::string> gathered, last;
  /// Of each receiver: by sender and tag, in order.
  std::vector<std::map<std::pair<uint32_t, uint32_t>, std::deque<Parcel*>>> boxes;
};

Error left() { return Error(Code::kIo, "", "another rank has ended early"); }

class LocalTransport final : public Transport {
 public:
  LocalTransport(Hub& hub, uint32_t rank) : hub_(hub), rank_(rank) {}
  ~LocalTransport() override {
    {
      std::unique_lock lock(hub_.mutex);
      hub_.gone = true;
      hub_.changed.notify_all();
    }
    while (!sent_.empty()) (void)wait(sent_.begin()->first);
  }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return static_cast<uint32_t>(hub_.boxes.size()); }

  Result<Request> send(uint32_t to, uint32_t tag, ByteSpan data) override {
    auto parcel = std::make_unique<Parcel>(Parcel{data});
    {
      std::unique_lock lock(hub_.mutex);
      hub_.boxes[to][{rank_, tag}].push_back(parcel.get());
    }
    hub_.changed.notify_all();
    sent_.emplace(next_, Sent{to, tag, std::move(parcel)});
    return next_++;
  }

  Result<Request> receive(uint32_t from, uint32_t tag, MutableByteSpan into) override {
    awaited_.emplace(next_, Awaited{from, tag, into});
    return next_++;
  }

  Result<void> wait(Request request) override {
    if (const auto found = awaited_.find(request); found != awaited_.end()) {
      const Awaited awaited = found->second;
      awaited_.erase(found);
      return fetch(awaited);
    }
    const auto found = sent_.find(request);
    CKPT_ASSERT(found != sent_.end());
    const Sent sent = std::move(found->second);
    sent_.erase(found);
    std::unique_lock lock(hub_.mutex);
    const Parcel::State& state = sent.parcel->state;
    hub_.changed.wait(
        lock, [&] { return state == Parcel::State::kFetched || (hub_.gone && state == Parcel::State::kWaiting); });
    if (state == Parcel::State::kFetched) return {};
    std::erase(hub_.boxes[sent.to][{rank_, sent.tag}], sent.parcel.get());
    return left();
  }

  Result<std::vector<std::string>> all_gather(const std::string& mine) override {
    std::unique_lock lock(hub_.mutex);
    const uint64_t round = hub_.round;
    hub_.gathered[rank_] = mine;
    if (++hub_.arrived == size()) {
      hub_.last = hub_.gathered;
      hub_.arrived = 0;
      ++hub_.round;
      hub_.changed.notify_all();
    } else {
      hub_.changed.wait(lock, [&] { return hub_.round != round || hub_.gone; });
      if (hub_.round == round) return left();
    }
    return hub_.last;
  }

 private:
  struct Sent {
    uint32_t to = 0, tag = 0;
    std::unique_ptr<Parcel> parcel;
  };
  struct Awaited {
    uint32_t from = 0, tag = 0;
    MutableByteSpan into;
  };

  Result<void> fetch(const Awaited& awaited) {
    std::unique_lock lock(hub_.mutex);
    std::deque<Parcel*>& box = hub_.boxes[rank_][{awaited.from, awaited.tag}];
    hub_.changed.wait(lock, [&] { return !box.empty() || hub_.gone; });
    if (box.empty()) return left();
    Parcel* parcel = box.front();
    box.pop_front();
    parcel->state = Parcel::State::kCopied;
    lock.unlock();
    const bool fits = parcel->data.size() <= awaited.into.size();
    if (fits) std::memcpy(awaited.into.data(), parcel->data.data(), parcel->data.size());
    lock.lock();
    parcel->state = Parcel::State::kFetched;
    hub_.changed.notify_all();
    return fits ? Result<void>() : fail(Code::kBug, "", "a message is longer than what it is received into");
  }

  Hub& hub_;
  uint32_t rank_;
  Request next_ = 0;
  std::map<Request, Sent> sent_;
  std::map<Request, Awaited> awaited_;
};

}  // namespace

Result<std::vector<Result<void>>> run_locally(uint32_t ranks, const std::function<Result<void>(Transport&)>& work) {
  Hub hub(ranks);
  std::vector<Result<void>> out(ranks);
  std::vector<std::thread> threads(ranks);
  std::vector<std::unique_ptr<LocalTransport>> transports;
  for (uint32_t rank = 0; rank < ranks; ++rank) transports.push_back(std::make_unique<LocalTransport>(hub, rank));
  bool complete = true;
  for (uint32_t rank = 0; rank < ranks && complete; ++rank) {
    complete = start_thread(threads[rank], [&, rank] {
      try {
        out[rank] = work(*transports[rank]);
      } catch (const std::bad_alloc&) {
        out[rank] = fail(Code::kNoRoom, "", "out of memory");
      }
      transports[rank].reset();  // from here on nobody waits for it
    });
  }
  if (!complete) transports.back().reset();  // what waits for ranks that are not there ends
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  if (!complete) return no_thread("ranks");
  return out;
}

}  // namespace ckpt
