#include "lib/remote/upload.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "lib/remote/md5.h"
#include "lib/remote/upload_parts.h"

namespace ckpt::remote {

namespace {

constexpr size_t kQueued = 1 << 16;  ///< jobs: what they hold is limited otherwise

}  // namespace

bool describes_others(const std::string& name) {
  const std::string last = name.substr(name.rfind('/') + 1);
  return last.starts_with('.') || last.ends_with(".json") || last.find("metadata") != std::string::npos;
}

Upload::Upload(std::string url, Options options, const Cancel* cancel)
    : url_(std::move(url)),
      options_(std::move(options)),
      cancel_(cancel),
      pool_(std::make_unique<WorkerPool>(kThreads, kQueued)) {}

Result<std::unique_ptr<Upload>> Upload::open(const std::string& url, const Options& options, const Cancel* cancel) {
  CKPT_TRY_ASSIGN(const Url parsed, parse_url(url));
  std::unique_ptr<Upload> out(new Upload(url, options, cancel));
  CKPT_TRY_ASSIGN(out->backend_, open_writable(parsed, cancel));
  if (parsed.name().empty()) return fail(Code::kUsage, url, "names a whole bucket: what is written needs a name in it");
  if (!options.plan.empty() && !out->backend_->takes_parts())
    return fail(Code::kUnsupported, url, "takes files only whole: --resume cannot go on there");
  if (options.one_file) out->options_.plan.clear();
  out->keeps_ = !out->options_.plan.empty();
  CKPT_TRY(out->look());
  return out;
}

/// What is there.
Result<void> Upload::look() {
  constexpr size_t kAny = 1;
  const bool goes_on = !options_.plan.empty();
  auto there = backend_->list(options_.force || goes_on ? Mounted::kMostObjects : kAny);
  if (!there && there.error().code == Code::kNotFound) return {};
  if (!there && (options_.force || goes_on || there.error().code != Code::kUsage)) return std::move(there).error();
  if (there) there_ = std::move(*there);
  if (goes_on) {
    const auto journal = std::find_if(there_.begin(), there_.end(),
                                      [](const Object& object) { return object.name == UploadJournal::kName; });
    if (journal != there_.end()) {
      const Object object = *journal;
      there_.erase(journal);
      CKPT_TRY(go_on_from(object));
    }
  }
  if (options_.force || (there && there_.empty())) return {};
  return Error(Code::kUsage, url_, "is there already")
      .with_hint("--force replaces it, and --resume goes on with a conversion to there that was begun by it");
}

/// What has appeared of it already is no stranger's.
Result<void> Upload::go_on_from(const Object& object) {
  const std::string subject = url_ + "/" + UploadJournal::kName;
  if (object.size > UploadJournal::kMostBytes) return fail(Code::kCorrupt, subject, "is no journal of an upload");
  std::string text(object.size, '\0');
  CKPT_TRY(backend_->read(object, 0, std::as_writable_bytes(std::span(text))));
  CKPT_TRY_ASSIGN(UploadJournal journal, parse_upload_journal(text, subject));
  if (journal.plan != options_.plan && !options_.force)
    return Error(Code::kBusy, url_, "is where another conversion was begun, with other options or of another source")
        .with_hint("go on with the options that it was begun with, or use --force");
  (journal.plan == options_.plan ? earlier_ : replaced_) = std::move(journal.files);
  std::erase_if(there_, [&](const Object& one) {
    const bool ours = std::any_of(earlier_.begin(), earlier_.end(), [&](const UploadJournal::File& file) {
      return file.name == one.name && file.size == one.size;
    });
    if (ours) completed_.push_back(one);
    return ours;
  });
  return {};
}

Result<bool> Upload::take_up(const std::string& name, uint64_t size) {
  const auto found = std::find_if(earlier_.begin(), earlier_.end(),
                                  [&](const auto& file) { return file.name == name && file.size == size; });
  if (found == earlier_.end()) return false;
  UploadJournal::File file = std::move(*found);
  earlier_.erase(found);
  auto there = backend_->list_parts(name, file.upload);
  // A list that lacks parts is one of an upload that cannot be completed.
  const bool gone = !there && (there.error().code == Code::kNotFound || there.error().code == Code::kCorrupt);
  if (!there && !gone) return std::move(there).error();
  const bool appeared = !there && std::any_of(completed_.begin(), completed_.end(), [&](const Object& object) {
    return object.name == name && without_quotes(object.etag) == etag_of_parts(file.parts);
  });
  auto same = [](const std::string& a, const std::string& b) { return without_quotes(a) == without_quotes(b); };
  const bool waits = there && std::equal(there->begin(), there->end(), file.parts.begin(), file.parts.end(), same);
  if (!appeared && !waits) {
    (void)backend_->abort_upload(name, file.upload);
    return false;
  }
  std::lock_guard lock(mutex_);
  Staged& staged = staged_.emplace_back(name, *PartSizes::of(size));
  staged.size = size, staged.finished = true;
  staged.parts = std::move(file.parts), staged.landed = staged.parts.size();
  staged.upload = Result<std::string>(std::move(file.upload));
  return true;
}

/// For who goes on should this be killed.
Result<void> Upload::write_down() {
  if (options_.plan.empty()) return {};
  std::lock_guard order(journal_mutex_);
  UploadJournal journal;
  journal.plan = options_.plan;
  {
    std::lock_guard lock(mutex_);
    for (const Staged& staged : staged_) {
      if (staged.complete()) journal.files.push_back({staged.name, staged.size, **staged.upload, staged.parts});
    }
  }
  return backend_->put(UploadJournal::kName, as_bytes(to_json(journal)), false);
}

/// Nothing goes on from here any more.
void Upload::drop_journal() {
  if (options_.plan.empty()) return;
  for (auto* files : {&earlier_, &replaced_}) {
    for (const UploadJournal::File& file : std::exchange(*files, {}))
      (void)backend_->abort_upload(file.name, file.upload);
  }
  (void)backend_->remove(UploadJournal::kName);
}

Upload::~Upload() {
  pool_.reset();
  if (committed_) return;
  try {
    (void)roll_back();
  } catch (...) {  // out of memory: what is left are uploads that nobody completes
  }
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
  keeps_ = false;
  Result<void> done = options_.force ? replace_what_is_there() : Result<void>();
  if (done) done = publish_all(options_.one_file ? "" : last);
  if (!done) {
    Error failed = roll_back_because(std::move(done).error());
    if (removed_ != 0) failed = std::move(failed).with_cause("what was there before has been removed, or part of it");
    return failed;
  }
  committed_ = true;
  drop_journal();
  return {};
}

/// Of a server that does not answer nobody knows what it has done.
Result<void> Upload::remove_what_was_there(const std::string& name) {
  auto done = backend_->remove(name);
  if (done || done.error().code == Code::kIo) ++removed_;
  return done;
}

/// Objects that are not replaced under their own names are removed; those that make a checkpoint of the rest first.
Result<void> Upload::replace_what_is_there() {
  const bool single = there_.size() == 1 && there_[0].name.empty();
  if (single && options_.one_file) return {};
  for (const bool describing : {true, false}) {
    WorkerPool pool(kThreads);
    for (const Object& object : there_) {
      if (describes_others(object.name) != describing) continue;
      if (!pool.submit([this, &object] { return remove_what_was_there(object.name); })) break;
    }
    CKPT_TRY(pool.finish());
  }
  return {};
}

/// Without --force nothing is written over: another's object, put there since this began, is not taken for ours, and
/// not taken back with ours.
Result<void> Upload::publish(Staged& staged) {
  if (staged.put) return {};
  // Before it is tried: what fails may have happened all the same.
  staged.published = true;
  const bool alone = !options_.force && !staged.replaces;
  auto done = staged.is_held ? backend_->put(staged.name, staged.held, alone)
              : staged.file  ? backend_->put_file(staged.name, staged.file.get(), alone)
                             : backend_->complete_upload(staged.name, **staged.upload, staged.parts, alone);
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
    if (keeps(staged)) continue;
    if (std::exchange(staged.published, false))
      (void)pool.submit(quietly([&] { return backend_->remove(staged.name); }));
    if (staged.uploads())
      (void)pool.submit(quietly([&] { return backend_->abort_upload(staged.name, **staged.upload); }));
  }
  (void)pool.finish();
  // Where uploads may be left it is all that names them.
  if (!keeps_ && out) drop_journal();
  return out;
}

/// For the next attempt.
bool Upload::keeps(const Staged& staged) const { return keeps_ && staged.complete(); }

}  // namespace ckpt::remote
