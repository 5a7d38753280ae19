// How files become parts on their way.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "lib/base/io.h"
#include "lib/remote/upload_parts.h"

namespace ckpt::remote {

namespace {

constexpr size_t kIdleBuffers = 8;

}  // namespace

/// Gathers bytes until a part is full.
class Upload::File final : public io::OutputFile {
 public:
  File(Upload& owner, Staged& staged) : owner_(owner), staged_(staged) {}

  Result<void> write(ByteSpan data, uint64_t offset) override {
    while (!data.empty()) {
      CKPT_TRY_ASSIGN(const unsigned part, staged_.sizes.part_at(offset));
      const uint64_t begin = staged_.sizes.begin(part), end = staged_.sizes.end(part);
      if (offset >= end) return fail(Code::kBug, staged_.name, "is written beyond its end");
      const ByteSpan piece = data.first(std::min<uint64_t>(data.size(), end - offset));
      std::memcpy(buffer_of(part, end - begin) + (offset - begin), piece.data(), piece.size());
      CKPT_TRY(filled(part, piece.size(), end - begin));
      data = data.subspan(piece.size());
      offset += piece.size();
    }
    return {};
  }

  Result<void> finish() override {
    uint64_t size = written_;
    if (staged_.sizes.total() && *staged_.sizes.total() != size)
      return fail(Code::kBug, staged_.name,
                  fmt::format("{} bytes of it were written, and {} were to be", size, *staged_.sizes.total()));
    if (size == 0) CKPT_TRY(owner_.hold(staged_, {}));
    for (auto& [part, open] : open_) {  // the last of a file whose size was not known
      open.bytes.resize(open.filled);
      CKPT_TRY(owner_.send(staged_, part, std::move(open.bytes)));
    }
    open_.clear();
    return owner_.finished(staged_, size);
  }

 private:
  struct Open {
    Buffer bytes;
    uint64_t filled = 0;
  };

  std::byte* buffer_of(unsigned part, uint64_t size) {
    std::lock_guard lock(mutex_);
    Open& open = open_[part];
    if (open.bytes.empty()) open.bytes = owner_.take_buffer(size);
    return open.bytes.data();
  }

  Result<void> filled(unsigned part, uint64_t bytes, uint64_t size) {
    Buffer full;
    {
      std::lock_guard lock(mutex_);
      written_ += bytes;
      Open& open = open_[part];
      open.filled += bytes;
      if (open.filled < size) return {};
      full = std::move(open.bytes);
      open_.erase(part);
    }
    return owner_.send(staged_, part, std::move(full));
  }

  Upload& owner_;
  Staged& staged_;
  std::mutex mutex_;
  std::map<unsigned, Open> open_;
  uint64_t written_ = 0;
};

/// On disk until it is finished.
class Upload::WholeFile final : public io::OutputFile {
 public:
  WholeFile(Upload& owner, Staged& staged, std::optional<uint64_t> size)
      : owner_(owner), staged_(staged), expected_(size) {}

  Result<void> write(ByteSpan data, uint64_t offset) override {
    written_ += data.size();
    auto done = io::pwrite_all(staged_.file.get(), data, offset, staged_.name);
    if (done || done.error().code != Code::kNoRoom) return done;
    return Error(std::move(done).error())
        .with_hint("what goes to a program (cmd:) lies below TMPDIR until it is whole");
  }

  Result<void> finish() override {
    if (expected_.value_or(written_) != written_)
      return fail(Code::kBug, staged_.name,
                  fmt::format("{} bytes of it were written, and {} were to be", written_.load(), *expected_));
    return owner_.whole(staged_, written_);
  }

 private:
  Upload& owner_;
  Staged& staged_;
  const std::optional<uint64_t> expected_;
  std::atomic<uint64_t> written_{0};
};

Result<std::unique_ptr<io::OutputFile>> Upload::create(const std::string& name, std::optional<uint64_t> size) {
  auto sizes = backend_->takes_parts() ? PartSizes::of(size) : PartSizes::of(0);
  if (!sizes) {
    sizes.error().subject = name;
    return std::move(sizes).error();
  }
  UniqueFd file;
  if (!backend_->takes_parts()) {
    CKPT_TRY_ASSIGN(file, make_unnamed_file());
  }
  std::lock_guard lock(mutex_);
  Staged& staged = staged_.emplace_back(options_.one_file ? "" : name, *sizes);
  staged.file = std::move(file);
  staged.replaces = std::any_of(completed_.begin(), completed_.end(),
                                [&](const Object& object) { return object.name == staged.name; });
  if (staged.file) return std::unique_ptr<io::OutputFile>(new WholeFile(*this, staged, size));
  return std::unique_ptr<io::OutputFile>(new File(*this, staged));
}

Upload::Buffer Upload::take_buffer(uint64_t size) {
  {
    std::lock_guard lock(mutex_);
    if (size == PartSizes::kPart && !idle_.empty()) {
      Buffer out = std::move(idle_.back());
      idle_.pop_back();
      return out;
    }
  }
  return Buffer(size);
}

void Upload::give_back(Buffer buffer) {
  std::lock_guard lock(mutex_);
  if (buffer.size() == PartSizes::kPart && idle_.size() < kIdleBuffers) idle_.push_back(std::move(buffer));
}

void Upload::never_wait(bool set) {
  {
    std::lock_guard lock(mutex_);
    never_wait_ = set;
  }
  landed_.notify_all();
}

/// Room among what is on its way: always for one part, of whatever size.
bool Upload::has_room(uint64_t bytes) const { return in_flight_ == 0 || in_flight_ + bytes <= kInFlight; }

/// A full part, or the last one. Waits while enough are on their way, or takes the way by disk.
Result<void> Upload::send(Staged& staged, unsigned part, Buffer bytes) {
  const bool whole = part == 0 && bytes.size() < PartSizes::kPart;
  std::unique_lock lock(mutex_);
  if (whole && held_ + bytes.size() <= kHeld) {
    lock.unlock();
    return hold(staged, std::move(bytes));
  }
  if (staged.parts.size() <= part) staged.parts.resize(part + 1);
  landed_.wait(lock, [&] { return never_wait_ || has_room(bytes.size()); });
  if (!has_room(bytes.size())) {
    lock.unlock();
    CKPT_TRY_ASSIGN(const bool on_disk, send_later(staged, part, bytes));
    if (on_disk) return give_back(std::move(bytes)), Result<void>();
    lock.lock();
    waited_ = true;
    landed_.wait(lock, [&] { return has_room(bytes.size()); });
  }
  in_flight_ += bytes.size();
  lock.unlock();
  auto ticket = std::make_shared<Ticket>(*this, std::move(bytes));
  const bool taken = pool_->submit([this, &staged, part, ticket] { return send_part(staged, part, ticket->bytes()); });
  return taken ? Result<void>() : pool_->finish();
}

/// As many are back in memory at a time as there are threads. False: the disk has no room for it.
Result<bool> Upload::send_later(Staged& staged, unsigned part, ByteSpan bytes) {
  auto at = spool_.put(bytes);
  if (!at && at.error().code == Code::kNoRoom) return false;
  if (!at) return std::move(at).error();
  const bool taken = pool_->submit([this, &staged, part, at = *at, size = bytes.size()]() -> Result<void> {
    Buffer again = take_buffer(size);
    CKPT_TRY(spool_.take(at, again));
    CKPT_TRY(send_part(staged, part, again));
    give_back(std::move(again));
    return {};
  });
  if (!taken) CKPT_TRY(pool_->finish());
  return true;
}

bool Upload::waited() const {
  std::lock_guard lock(mutex_);
  return waited_;
}

Result<void> Upload::send_part(Staged& staged, unsigned part, ByteSpan bytes) {
  std::string upload;
  {
    std::lock_guard lock(staged.beginning);  // one asks, also where the answer is no
    if (!staged.upload) staged.upload = backend_->begin_upload(staged.name);
    CKPT_TRY_ASSIGN(upload, *staged.upload);
  }
  CKPT_TRY_ASSIGN(std::string tag, backend_->upload_part(staged.name, upload, part + 1, bytes));
  bool complete = false;
  {
    std::lock_guard lock(mutex_);
    staged.parts[part] = std::move(tag);
    ++staged.landed;
    complete = staged.complete();
  }
  return complete ? write_down() : Result<void>();
}

/// All of it has been written, and goes up, or waits in memory.
Result<void> Upload::finished(Staged& staged, uint64_t size) {
  bool complete = false;
  {
    std::lock_guard lock(mutex_);
    staged.size = size;
    staged.finished = true;
    complete = staged.complete();
  }
  return complete ? write_down() : Result<void>();
}

/// The same of one that is put whole.
Result<void> Upload::whole(Staged& staged, uint64_t size) {
  CKPT_TRY(finished(staged, size));
  bool small = size < PartSizes::kPart;
  if (small) {
    std::lock_guard lock(mutex_);
    small = held_ + size <= kHeld;
  }
  if (small) {
    Buffer bytes(size);
    CKPT_TRY(io::pread_exact(staged.file.get(), bytes, 0, staged.name));
    staged.file.reset();
    return hold(staged, std::move(bytes));
  }
  if (!may_go_early(staged)) return {};
  return pool_->submit([this, &staged] { return put_early(staged); }) ? Result<void>() : pool_->finish();
}

/// Nothing becomes readable by it, and nothing is lost.
bool Upload::may_go_early(const Staged& staged) const {
  return !options_.one_file && there_.empty() && !describes_others(staged.name);
}

Result<void> Upload::put_early(Staged& staged) {
  CKPT_TRY(publish(staged));
  staged.put = true;
  staged.file.reset();
  return {};
}

Result<void> Upload::hold(Staged& staged, Buffer bytes) {
  bytes.shrink_to_fit();
  std::lock_guard lock(mutex_);
  held_ += bytes.size();
  staged.held = std::move(bytes);
  staged.is_held = true;
  return {};
}

}  // namespace ckpt::remote
