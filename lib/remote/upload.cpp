#include "lib/remote/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

namespace ckpt::remote {

namespace {

constexpr size_t kIdleBuffers = 8;
constexpr size_t kQueued = 1 << 16;  ///< jobs: what they hold is limited otherwise

/// Objects that make a checkpoint readable, whatever its format: they go first where it goes.
bool describes_others(const std::string& name) {
  const std::string last = name.substr(name.rfind('/') + 1);
  return last.starts_with('.') || last.ends_with(".json") || last.find("metadata") != std::string::npos;
}

}  // namespace

/// A file under way, and what is known of its upload.
struct Upload::Staged {
  Staged(std::string n, PartSizes s) : name(std::move(n)), sizes(s) {}

  const std::string name;  ///< of the object
  const PartSizes sizes;
  uint64_t size = 0;               ///< once it is finished
  std::vector<std::string> parts;  ///< what the server calls them
  Buffer held;
  bool is_held = false, finished = false, published = false;
  std::mutex beginning;  ///< of `upload`: the first part begins it
  std::optional<Result<std::string>> upload;
  bool uploads() const { return upload && *upload; }
};

/// Bytes on their way; they have landed when it goes, also where a job is dropped.
class Upload::Ticket {
 public:
  Ticket(Upload& owner, Buffer bytes) : bytes_(std::move(bytes)), size_(bytes_.size()), owner_(owner) {}
  ~Ticket() {
    {
      std::lock_guard lock(owner_.mutex_);
      owner_.in_flight_ -= size_;
    }
    owner_.give_back(std::move(bytes_));
    owner_.landed_.notify_all();
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ByteSpan bytes() const { return bytes_; }

 private:
  Buffer bytes_;
  const uint64_t size_;
  Upload& owner_;
};

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
    std::lock_guard lock(owner_.mutex_);
    staged_.size = size;
    staged_.finished = true;
    return {};
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

Upload::Upload(std::string url, const Options& options, const Cancel* cancel)
    : url_(std::move(url)),
      options_(options),
      cancel_(cancel),
      pool_(std::make_unique<WorkerPool>(kThreads, kQueued)) {}

Result<std::unique_ptr<Upload>> Upload::open(const std::string& url, const Options& options, const Cancel* cancel) {
  CKPT_TRY_ASSIGN(const Url parsed, parse_url(url));
  if (parsed.scheme == Url::Scheme::kCommand)
    return Error(Code::kUnsupported, url, "is read, and holds stores: no part of an object can be written there")
        .with_hint("write to a folder, and give that to the program");
  std::unique_ptr<Upload> out(new Upload(url, options, cancel));
  CKPT_TRY_ASSIGN(out->backend_, open_writable(parsed, cancel));
  if (parsed.name().empty()) return fail(Code::kUsage, url, "names a whole bucket: what is written needs a name in it");
  constexpr size_t kAny = 1;
  auto there = out->backend_->list(options.force ? Mounted::kMostObjects : kAny);
  if (!there && there.error().code == Code::kNotFound) return out;
  if (!options.force && (there || there.error().code == Code::kUsage))
    return Error(Code::kUsage, url, "is there already").with_hint("--force replaces it");
  if (!there) return std::move(there).error();
  out->there_ = std::move(*there);
  return out;
}

Upload::~Upload() {
  pool_.reset();
  if (committed_) return;
  try {
    (void)roll_back();
  } catch (...) {  // out of memory: what is left are uploads that nobody completes
  }
}

Result<std::unique_ptr<io::OutputFile>> Upload::create(const std::string& name, std::optional<uint64_t> size) {
  auto sizes = PartSizes::of(size);
  if (!sizes) {
    sizes.error().subject = name;
    return std::move(sizes).error();
  }
  std::lock_guard lock(mutex_);
  Staged& staged = staged_.emplace_back(options_.one_file ? "" : name, *sizes);
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

/// A full part, or the last one. Waits while enough are on their way, or takes the way by disk.
Result<void> Upload::send(Staged& staged, unsigned part, Buffer bytes) {
  const bool whole = part == 0 && bytes.size() < PartSizes::kPart;
  bool later = false;
  {
    std::unique_lock lock(mutex_);
    if (whole && held_ + bytes.size() <= kHeld) {
      lock.unlock();
      return hold(staged, std::move(bytes));
    }
    auto has_room = [&] { return in_flight_ == 0 || in_flight_ + bytes.size() <= kInFlight; };
    landed_.wait(lock, [&] { return never_wait_ || has_room(); });
    later = !has_room();
    if (!later) in_flight_ += bytes.size();
    if (staged.parts.size() <= part) staged.parts.resize(part + 1);
  }
  if (later) return send_later(staged, part, std::move(bytes));
  auto ticket = std::make_shared<Ticket>(*this, std::move(bytes));
  const bool taken = pool_->submit([this, &staged, part, ticket] { return send_part(staged, part, ticket->bytes()); });
  return taken ? Result<void>() : pool_->finish();
}

/// As many are back in memory at a time as there are threads.
Result<void> Upload::send_later(Staged& staged, unsigned part, Buffer bytes) {
  CKPT_TRY_ASSIGN(const uint64_t at, spool_.put(bytes));
  const size_t size = bytes.size();
  give_back(std::move(bytes));
  const bool taken = pool_->submit([this, &staged, part, at, size]() -> Result<void> {
    Buffer again = take_buffer(size);
    CKPT_TRY(spool_.take(at, again));
    CKPT_TRY(send_part(staged, part, again));
    give_back(std::move(again));
    return {};
  });
  return taken ? Result<void>() : pool_->finish();
}

Result<void> Upload::send_part(Staged& staged, unsigned part, ByteSpan bytes) {
  std::string upload;
  {
    std::lock_guard lock(staged.beginning);  // one asks, also where the answer is no
    if (!staged.upload) staged.upload = backend_->begin_upload(staged.name);
    CKPT_TRY_ASSIGN(upload, *staged.upload);
  }
  CKPT_TRY_ASSIGN(std::string tag, backend_->upload_part(staged.name, upload, part + 1, bytes));
  std::lock_guard lock(mutex_);
  staged.parts[part] = std::move(tag);
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

uint64_t Upload::bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t out = 0;
  for (const Staged& staged : staged_) out += staged.size;
  return out;
}

Result<void> Upload::commit(const std::string& last) {
  CKPT_TRY(pool_->finish());
  const bool complete = std::all_of(staged_.begin(), staged_.end(), [](const Staged& one) { return one.finished; });
  if (!complete) return fail(Code::kBug, url_, "is to be complete, and not all of its files are");
  if (cancel_ != nullptr) CKPT_TRY(cancel_->check());
  if (options_.force) CKPT_TRY(replace_what_is_there());
  if (auto done = publish_all(options_.one_file ? "" : last); !done) {
    Error failed = roll_back_because(std::move(done).error());
    if (!there_.empty()) failed = std::move(failed).with_cause("what was there before has been removed");
    return failed;
  }
  committed_ = true;
  return {};
}

/// Objects that are not replaced under their own names are removed; those that make a checkpoint of the rest first.
Result<void> Upload::replace_what_is_there() {
  const bool single = there_.size() == 1 && there_[0].name.empty();
  if (single && options_.one_file) return {};
  for (const bool describing : {true, false}) {
    WorkerPool pool(kThreads);
    for (const Object& object : there_) {
      if (describes_others(object.name) != describing) continue;
      const std::string& name = object.name;
      if (!pool.submit([this, &name] { return backend_->remove(name); })) break;
    }
    CKPT_TRY(pool.finish());
  }
  return {};
}

/// Without --force nothing is written over: another's object, put there since this began, is not taken for ours, and
/// not taken back with ours.
Result<void> Upload::publish(Staged& staged) {
  // Before it is tried: what fails may have happened all the same.
  staged.published = true;
  auto done = staged.is_held ? backend_->put(staged.name, staged.held, !options_.force)
                             : backend_->complete_upload(staged.name, **staged.upload, staged.parts, !options_.force);
  if (done) {
    staged.upload.reset();
  } else if (done.error().code == Code::kMismatch) {
    staged.published = false;
    return Error(Code::kUsage, url_, "has appeared meanwhile").with_hint("--force replaces it");
  }
  return done;
}

Result<void> Upload::publish_all(const std::string& last) {
  Staged* final = nullptr;
  WorkerPool pool(kThreads);
  for (Staged& staged : staged_) {
    if (staged.name == last) {
      final = &staged;
    } else if (!pool.submit([this, &staged] { return publish(staged); })) {
      break;
    }
  }
  CKPT_TRY(pool.finish());
  if (final == nullptr) return fail(Code::kBug, url_, "lacks the file that makes it complete");
  return publish(*final);
}

Result<std::filesystem::path> Upload::read_back() {
  CKPT_TRY_ASSIGN(mounted_, Mounted::open(url_, cancel_));
  return mounted_->path();
}

Error Upload::withdraw(Error because) {
  committed_ = false;
  mounted_.reset();
  return roll_back_because(std::move(because));
}

Error Upload::roll_back_because(Error because) {
  auto done = roll_back();
  if (done) return because;
  return std::move(because).with_cause("objects stay behind at " + url_ + ": " + done.error().text());
}

/// As far as the server is there; the first thing that could not be taken back. What was published goes in the order of
/// coming backwards.
Result<void> Upload::roll_back() {
  if (!backend_) return {};
  std::mutex mutex;
  Result<void> out;
  std::atomic<bool> gone = false;
  auto quietly = [&](auto tidy) {
    return [&, tidy]() -> Result<void> {
      if (gone) return {};
      auto done = tidy();
      if (done) return {};
      if (done.error().code == Code::kIo) gone = true;  // the others would wait as long, and be as vain
      std::lock_guard lock(mutex);
      if (out) out = std::move(done);
      return {};
    };
  };
  for (auto staged = staged_.rbegin(); staged != staged_.rend(); ++staged) {
    if (!staged->published || !describes_others(staged->name)) continue;
    staged->published = false;
    (void)quietly([&] { return backend_->remove(staged->name); })();
  }
  WorkerPool pool(kThreads);
  for (Staged& staged : staged_) {
    if (std::exchange(staged.published, false))
      (void)pool.submit(quietly([&] { return backend_->remove(staged.name); }));
    if (staged.uploads())
      (void)pool.submit(quietly([&] { return backend_->abort_upload(staged.name, **staged.upload); }));
  }
  (void)pool.finish();
  return out;
}

}  // namespace ckpt::remote
