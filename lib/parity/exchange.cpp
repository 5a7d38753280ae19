#include "lib/parity/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <memory>

#include "lib/base/checked.h"
#include "lib/base/threads.h"
#include "lib/parity/galois.h"

namespace ckpt::parity {

namespace {

constexpr const char* kElsewhere = "another rank has failed";
constexpr uint32_t kSmallestBlock = 16 << 10, kLargestBlock = 1 << 20;

/// Before the bytes of every message.
struct Header {
  uint64_t epoch = 0, block = 0;
  uint32_t attempt = 0, row = 0;
  uint32_t failed = 0;  ///< nothing follows: the sender has no bytes
  uint32_t zero[9] = {};
};
static_assert(sizeof(Header) == kBlockUnit);

/// A header and room for a block behind it, so that both are sent as one.
class Buffer {
 public:
  explicit Buffer(size_t block) : bytes_(new std::byte[sizeof(Header) + block]) {}
  MutableByteSpan message(size_t block) { return {bytes_.get(), sizeof(Header) + block}; }
  MutableByteSpan payload(size_t block) { return {bytes_.get() + sizeof(Header), block}; }
  void set(const Header& header) { std::memcpy(bytes_.get(), &header, sizeof header); }
  Header header() const {
    Header out;
    std::memcpy(&out, bytes_.get(), sizeof out);
    return out;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

/// What this member does for one chain.
struct Task {
  uint32_t tag = 0;  ///< the chain's number
  uint32_t row = 0;
  bool receives = false, sends = false;
  uint32_t from = 0, to = 0;  ///< members
  uint8_t factor = 0;         ///< of its own symbol; 0: it is the target
  size_t source = 0;          ///< which of the buffers of symbols
  size_t target = 0;          ///< which of the sums
};

struct Plan {
  std::vector<Task> tasks;
  std::vector<uint32_t> sources;  ///< rows of symbols that are read
  std::vector<uint32_t> targets;  ///< rows of symbols that are made
};

Plan plan_for(const Schedule& schedule, uint32_t me) {
  Plan out;
  auto number = [](std::vector<uint32_t>& rows, uint32_t row) {
    const auto found = std::find(rows.begin(), rows.end(), row);
    if (found != rows.end()) return static_cast<size_t>(found - rows.begin());
    rows.push_back(row);
    return rows.size() - 1;
  };
  for (uint32_t tag = 0; tag < schedule.size(); ++tag) {
    const Chain& chain = schedule[tag];
    for (size_t i = 0; i < chain.hops.size(); ++i) {
      if (chain.hops[i].member != me) continue;
      Task task{tag,
                chain.row,
                i > 0,
                true,
                i > 0 ? chain.hops[i - 1].member : 0,
                i + 1 < chain.hops.size() ? chain.hops[i + 1].member : chain.target,
                chain.hops[i].factor,
                0,
                0};
      task.source = number(out.sources, chain.row);
      out.tasks.push_back(task);
    }
    if (chain.target == me && !chain.hops.empty()) {
      Task task{tag, chain.row, true, false, chain.hops.back().member, 0, 0, 0, 0};
      task.target = number(out.targets, chain.row);
      out.tasks.push_back(task);
    }
  }
  return out;
}

/// The buffers and requests of one block; two of them are under way.
struct Slot {
  std::vector<Buffer> sources;                   ///< by number
  std::vector<std::unique_ptr<Buffer>> buffers;  ///< by task: what is received into, or a product
  std::vector<Transport::Request> receives;      ///< by task
  std::vector<Transport::Request> sends;
  std::vector<std::unique_ptr<Header>> notices;  ///< sent in place of bytes that are not there
  std::vector<Buffer*> sums;                     ///< by number: the buffer that the first message came in
  std::future<Result<void>> reading, writing;
};

class Exchange {
 public:
  Exchange(Transport& transport, const ExchangeJob& job, Symbols& symbols, ProgressSink& progress, const Cancel& cancel)
      : transport_(transport),
        job_(job),
        set_(*job.set),
        symbols_(symbols),
        progress_(progress),
        cancel_(cancel),
        plan_(plan_for(*job.schedule, job.member)) {
    for (Slot& slot : slots_) make_buffers(slot);
  }

  Result<void> run() {
    const uint64_t blocks = set_.blocks();
    start_reading(0);
    for (uint64_t block = 0; block < blocks; ++block) {
      if (auto stop = cancel_.check(); !stop) note(stop.error());
      begin(block);
      if (block + 1 < blocks) start_reading(block + 1);
      complete(block);
    }
    for (Slot& slot : slots_) finish_writing(slot);
    if (failed_) return error_;
    return {};
  }

 private:
  Slot& slot_of(uint64_t block) { return slots_[block % slots_.size()]; }

  void make_buffers(Slot& slot) {
    for (size_t i = 0; i < plan_.sources.size(); ++i) slot.sources.emplace_back(set_.block);
    for (const Task& task : plan_.tasks) {
      const bool own = task.receives || task.factor != 1;
      slot.buffers.push_back(own ? std::make_unique<Buffer>(set_.block) : nullptr);
    }
    slot.receives.resize(plan_.tasks.size());
    slot.sums.resize(plan_.targets.size());
  }

  /// The first error stays; after it nothing is read, summed or written any more.
  void note(const Error& error) {
    if (!std::exchange(failed_, true))
      error_ = error;
    else if (is_secondary(error_) && !is_secondary(error))
      error_ = error;
  }

  void start_reading(uint64_t block) {
    Slot& slot = slot_of(block);
    slot.reading = in_background([this, &slot, block, stopped = failed_]() -> Result<void> {
      const size_t size = set_.block_bytes(block);
      for (size_t i = 0; i < plan_.sources.size() && !stopped; ++i)
        CKPT_TRY(symbols_.read(plan_.sources[i], block, slot.sources[i].payload(size)));
      return {};
    });
  }

  void finish_writing(Slot& slot) {
    if (!slot.writing.valid()) return;
    if (Result<void> written = slot.writing.get(); !written) note(written.error());
  }

  Header header(uint64_t block, uint32_t row) const {
    Header out;
    out.epoch = set_.epoch, out.block = block, out.attempt = job_.attempt, out.row = row, out.failed = failed_;
    return out;
  }

  void send(Slot& slot, const Task& task, uint64_t block, Buffer& buffer) {
    ByteSpan message;
    if (failed_) {
      slot.notices.push_back(std::make_unique<Header>(header(block, task.row)));
      message = std::as_bytes(std::span(slot.notices.back().get(), 1));
    } else {
      buffer.set(header(block, task.row));
      message = buffer.message(set_.block_bytes(block));
    }
    auto request = transport_.send(job_.ranks[task.to], tag(task, block), message);
    if (request)
      slot.sends.push_back(*request);
    else
      note(request.error());
  }

  /// Two blocks are under way at most: their messages do not meet.
  uint32_t tag(const Task& task, uint64_t block) const {
    return static_cast<uint32_t>(block % 2 * job_.schedule->size() + task.tag);
  }

  /// Everything that waits for nobody.
  void begin(uint64_t block) {
    Slot& slot = slot_of(block);
    finish_writing(slot);  // of two blocks before
    const size_t size = set_.block_bytes(block);
    for (size_t i = 0; i < plan_.tasks.size(); ++i) {
      const Task& task = plan_.tasks[i];
      if (!task.receives) continue;
      auto request = transport_.receive(job_.ranks[task.from], tag(task, block), slot.buffers[i]->message(size));
      if (!request)
        broken_ = true, note(request.error());
      else
        slot.receives[i] = *request;
    }
    if (Result<void> read = slot.reading.get(); !read) note(read.error());
    for (size_t i = 0; i < plan_.tasks.size(); ++i) {
      const Task& task = plan_.tasks[i];
      if (task.receives) continue;
      Buffer& own = slot.sources[task.source];
      if (slot.buffers[i] == nullptr) {
        send(slot, task, block, own);
      } else {
        if (!failed_) gf_scale(slot.buffers[i]->payload(size), own.payload(size), task.factor);
        send(slot, task, block, *slot.buffers[i]);
      }
    }
  }

  Result<void> check(const Header& got, uint64_t block, uint32_t row) const {
    if (got.epoch != set_.epoch || got.block != block || got.attempt != job_.attempt || got.row != row)
      return fail(Code::kBug, "",
                  fmt::format("a message of epoch {:x}, block {} came in place of one of {:x}, {}", got.epoch,
                              got.block, set_.epoch, block));
    if (got.failed != 0) return fail(Code::kIo, "", kElsewhere);
    return {};
  }

  /// What comes in is added up and sent on, chain by chain in the order that all members keep to.
  void complete(uint64_t block) {
    Slot& slot = slot_of(block);
    const size_t size = set_.block_bytes(block);
    std::fill(slot.sums.begin(), slot.sums.end(), nullptr);
    for (size_t i = 0; i < plan_.tasks.size() && !broken_; ++i) {
      const Task& task = plan_.tasks[i];
      if (!task.receives) continue;
      Buffer& buffer = *slot.buffers[i];
      Result<void> came = transport_.wait(slot.receives[i]);
      if (!came) broken_ = true;
      if (came) came = check(buffer.header(), block, task.row);
      if (!came) note(came.error());
      if (task.sends) {
        if (!failed_) gf_add(buffer.payload(size), slot.sources[task.source].payload(size), task.factor);
        send(slot, task, block, buffer);
      } else if (Buffer*& sum = slot.sums[task.target]; sum == nullptr) {
        sum = &buffer;
      } else if (!failed_) {
        gf_add(sum->payload(size), buffer.payload(size), 1);
      }
    }
    for (Transport::Request request : slot.sends) {
      if (Result<void> sent = transport_.wait(request); !sent) broken_ = true, note(sent.error());
    }
    slot.sends.clear(), slot.notices.clear();
    progress_.advance(failed_ ? 0 : size * plan_.sources.size());
    if (failed_ || plan_.targets.empty()) return;
    slot.writing = in_background([this, &slot, block, size]() -> Result<void> {
      for (size_t i = 0; i < plan_.targets.size(); ++i)
        CKPT_TRY(symbols_.write(plan_.targets[i], block, slot.sums[i]->payload(size)));
      return {};
    });
    // Blocks are written in order, by one thread at a time.
    finish_writing(slots_[(block + 1) % slots_.size()]);
  }

  Transport& transport_;
  const ExchangeJob& job_;
  const SetRecord& set_;
  Symbols& symbols_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  const Plan plan_;
  std::array<Slot, 2> slots_;
  bool failed_ = false;
  bool broken_ = false;  ///< messages do not come any more
  Error error_;
};

}  // namespace

Result<void> exchange(Transport& transport, const ExchangeJob& job, Symbols& symbols, ProgressSink& progress,
                      const Cancel& cancel) {
  if (job.schedule->empty()) return {};
  return Exchange(transport, job, symbols, progress, cancel).run();
}

uint32_t block_for(const Schedule& schedule, uint32_t members, uint64_t chunk, uint64_t memory) {
  const uint64_t buffers = std::max<uint64_t>(2 * buffers_needed(schedule, members), 1);
  const uint64_t fitting = align_down<uint64_t>(memory / buffers, 4096);
  return static_cast<uint32_t>(
      std::min(std::clamp<uint64_t>(fitting, kSmallestBlock, kLargestBlock), std::max<uint64_t>(chunk, kBlockUnit)));
}

bool is_secondary(const Error& error) { return error.code == Code::kIo && error.message == kElsewhere; }

}  // namespace ckpt::parity
