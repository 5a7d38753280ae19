#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/store/append_file.h"
#include "lib/store/block_index.h"
#include "lib/store/chain.h"
#include "lib/store/content_index.h"
#include "lib/store/features.h"
#include "lib/store/find_images.h"
#include "lib/store/image.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

/// What one thread at a time needs to store blocks: working memory, and a pages file of its own, because two threads
/// that write one file wait for each other in the kernel (0.22 s a GiB instead of 0.12, ext4's page cache, two cores).
struct WriterShard {
  std::mutex mutex;
  std::optional<AppendFile> file;
  uint8_t file_number = 0;
  Compressor compressor;
  std::vector<std::byte> scratch = std::vector<std::byte>(kBlockSize);
};

class Writer final : public ImageWriter {
 public:
  Writer(StagedDir staged, const Options& options, std::optional<Chain> parent, UniqueFd parent_lock, AppendFile xstate,
         AppendFile pipes)
      : staged_(std::move(staged)),
        options_(options),
        parent_(std::move(parent)),
        parent_lock_(std::move(parent_lock)),
        chain_(parent_ ? std::optional<ContentIndex>(*parent_) : std::nullopt),
        xstate_(std::move(xstate)),
        pipes_(std::move(pipes)),
        shards_(std::clamp(std::thread::hardware_concurrency(), 1u, 8u)) {}

  Result<void> add_block(const Block& block) override { return add(block, BlockIndex::kFinal); }
  Result<void> add_precopied(const Block& block, unsigned iteration) override;
  Result<uint64_t> append_xstate(ByteSpan data) override { return append(xstate_, data); }
  Result<uint64_t> append_pipe(ByteSpan data) override { return append(pipes_, data); }
  Totals totals() const override;
  const fs::path& staging() const override { return staged_.path(); }
  Result<void> commit(Manifest& manifest, const Check& check) override;

 private:
  Result<void> check(const Block& block) const;
  Result<void> add(const Block& block, uint16_t iteration);
  Result<void> store_block(const Block& block, uint16_t zero, uint16_t iteration);
  bool parent_has(uint64_t address, uint16_t pages, const Hash128& hash) const;
  bool chain_has(PagemapRecord& record) const;
  Result<void> store_chunk(WriterShard& shard, PagemapRecord& record, ByteSpan packed, ByteSpan frame);
  std::unique_lock<std::mutex> take_shard(WriterShard*& shard);
  Result<void> open_file(WriterShard& shard);
  Result<uint64_t> append(AppendFile& file, ByteSpan data);
  Result<void> clear_outdated(const std::vector<PagemapRecord>& records);
  Result<AppendFile> write_pagemap();
  Result<void> hash_pages();
  Result<void> make_durable(Manifest& manifest);
  Result<void> fill_in(Manifest& manifest) const;
  Result<void> write_manifest(const Manifest& manifest) const;
  fs::path leave_link(const Manifest& manifest) const;
  /// From the first failure on nothing is written, and nothing is ever committed.
  Result<void> remember(Result<void> result) {
    if (!result) note_failure(result.error());
    return result;
  }
  void note_failure(const Error& error) {
    std::lock_guard lock(failure_mutex_);
    if (!failed_.exchange(true)) failure_ = error;
  }
  /// What later callers are told: the first failure itself, since any of them may be the one whose word is heard.
  Error first_failure() {
    std::lock_guard lock(failure_mutex_);
    return failure_;
  }

  StagedDir staged_;
  const Options options_;
  const std::optional<Chain> parent_;
  UniqueFd parent_lock_;  ///< against its removal
  const std::optional<ContentIndex> chain_;  ///< of parent_
  std::mutex append_mutex_;
  AppendFile xstate_, pipes_;
  std::vector<WriterShard> shards_;
  std::mutex files_mutex_;
  uint8_t files_ = 0;  ///< pages files made so far
  BlockIndex index_;
  std::atomic<bool> precopied_{false};  ///< pages were pre-copied
  std::atomic<uint64_t> pages_data_{0}, pages_zero_{0}, bytes_written_{0};
  std::atomic<uint64_t> pages_unwritten_{0}, pages_equal_{0};  ///< as in the parent
  std::atomic<uint64_t> pages_same_space_{0}, pages_other_space_{0}, pages_elsewhere_{0}, bytes_compression_{0};
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Error failure_{Code::kBug, "", "the image is committed already"};
};

Result<void> Writer::check(const Block& block) const {
  unsigned all = page_count(block.data_mask | block.zero_mask | block.parent_mask);
  bool twice = page_count(block.data_mask) + page_count(block.zero_mask) + page_count(block.parent_mask) != all;
  if (block.address % kBlockSize != 0 || twice || block.data.size() != page_count(block.data_mask) * kPageSize) {
    return fail(Code::kBug, "", fmt::format("the block at {:#x} does not fit together", block.address));
  }
  if (block.parent_mask != 0 && !parent_ && !precopied_.load(kRelaxed))
    return fail(Code::kBug, "", "a block refers to a parent, and the image has none");
  return {};
}

Result<void> Writer::add_precopied(const Block& block, unsigned iteration) {
  CKPT_ASSERT(block.parent_mask == 0 && iteration < BlockIndex::kFinal);
  precopied_.store(true, kRelaxed);
  return add(block, static_cast<uint16_t>(iteration));
}

Result<void> Writer::add(const Block& block, uint16_t iteration) {
  if (failed_.load(kRelaxed)) return first_failure();
  CKPT_TRY(remember(check(block)));
  return remember(store_block(block, find_zero_pages(block.data_mask, block.data), iteration));
}

Result<void> Writer::store_block(const Block& block, uint16_t zero, uint16_t iteration) {
  const bool counts = iteration == BlockIndex::kFinal;  // of the iterations of pre-copy only the end tells what counts
  PagemapRecord record;
  record.address = block.address;
  record.zero_mask = block.zero_mask | zero;
  record.parent_mask = block.parent_mask;
  if (counts) pages_zero_.fetch_add(page_count(record.zero_mask), kRelaxed);
  pages_unwritten_.fetch_add(page_count(record.parent_mask), kRelaxed);
  const uint16_t keep = block.data_mask & static_cast<uint16_t>(~zero);
  if (keep == 0) {
    if (record.all_pages() != 0) index_.add(record, iteration);
    return {};
  }
  WriterShard* shard = nullptr;
  std::unique_lock<std::mutex> lock = take_shard(shard);
  ByteSpan packed = block.data;
  if (zero != 0) {
    pack_pages(block.data_mask, block.data, keep, shard->scratch.data());
    packed = ByteSpan(shard->scratch).first(page_count(keep) * kPageSize);
  }
  trace::Span hashing("hash");
  const Hash128 hash = xxh3_128(packed);
  hashing.end();
  // Below pre-copied pages the parent's would not be seen.
  if (!precopied_.load(kRelaxed) && parent_has(record.address, keep, hash)) {
    record.parent_mask |= keep;
    pages_equal_.fetch_add(page_count(keep), kRelaxed);
    index_.add(record, iteration);
    return {};
  }
  record.data_mask = keep;
  record.hash = hash;
  if (counts) pages_data_.fetch_add(page_count(keep), kRelaxed);
  if (chain_has(record)) {
    pages_elsewhere_.fetch_add(page_count(keep), kRelaxed);
    index_.add(record, iteration);
    return {};
  }
  const BlockIndex::Added added = index_.add(record, iteration);
  if (added.fresh != nullptr) return store_chunk(*shard, *added.fresh, packed, zero == 0 ? block.frame : ByteSpan());
  const bool same_space = added.first_address >> kSpaceShift == record.address >> kSpaceShift;
  (same_space ? pages_same_space_ : pages_other_space_).fetch_add(page_count(keep), kRelaxed);
  return {};
}

/// Has the parent exactly these pages of the block in one chunk, with the same content?
bool Writer::parent_has(uint64_t address, uint16_t pages, const Hash128& hash) const {
  if (!parent_) return false;
  std::optional<size_t> block = parent_->pages.find(address);
  if (!block) return false;
  for (const Source& source : parent_->pages.sources_of(*block)) {
    const PagemapRecord& record = parent_->pages.record(source);
    if (source.mask == pages && record.data_mask == pages && record.hash == hash) return true;
  }
  return false;
}

/// Is a chunk with the record's content anywhere in the chain? Then the record refers to it.
bool Writer::chain_has(PagemapRecord& record) const {
  auto found = chain_ ? chain_->find(record.hash, page_count(record.data_mask)) : std::nullopt;
  if (!found) return false;
  record.ancestor = static_cast<uint16_t>(found->image + 1);
  record.codec = found->record->codec;
  record.file = found->record->file;
  record.offset = found->record->offset;
  record.length_less_one = found->record->length_less_one;
  record.stored_check = found->record->stored_check;
  return true;
}

/// The first shard that is free: as many pages files come to be as threads were really at work at a time.
std::unique_lock<std::mutex> Writer::take_shard(WriterShard*& shard) {
  for (WriterShard& candidate : shards_) {
    std::unique_lock<std::mutex> lock(candidate.mutex, std::try_to_lock);
    if (lock.owns_lock()) {
      shard = &candidate;
      return lock;
    }
  }
  shard = &shards_[std::hash<std::thread::id>()(std::this_thread::get_id()) % shards_.size()];
  return std::unique_lock<std::mutex>(shard->mutex);
}

Result<void> Writer::open_file(WriterShard& shard) {
  std::lock_guard lock(files_mutex_);
  CKPT_TRY_ASSIGN(AppendFile file, AppendFile::create(staged_.path(), pages_file_name(files_),
                                                      AppendFile::Kind::kPages, &options_.sink));
  shard.file.emplace(std::move(file));
  if (options_.sha256_pages && shard.file->is_hole()) shard.file->hash_as_written();
  shard.file_number = files_++;
  return {};
}

/// `frame`: of `packed`, where it is at hand.
Result<void> Writer::store_chunk(WriterShard& shard, PagemapRecord& record, ByteSpan packed, ByteSpan frame) {
  if (!shard.file) CKPT_TRY(open_file(shard));
  trace::Span compressing("compress");
  ByteSpan stored = !frame.empty() ? frame : options_.compress ? shard.compressor.try_compress(packed) : ByteSpan();
  compressing.end();
  trace::Span writing("write");
  const uint64_t before = shard.file->size();
  if (stored.empty()) {
    stored = packed;
    CKPT_TRY(shard.file->align());
  } else {
    record.codec = Codec::kZstd;
    record.stored_check = stored_check(stored);
    bytes_compression_.fetch_add(packed.size() - stored.size(), kRelaxed);
  }
  record.file = shard.file_number;
  record.set_stored_length(stored.size());
  CKPT_TRY_ASSIGN(record.offset, shard.file->append(stored));
  bytes_written_.fetch_add(shard.file->size() - before, kRelaxed);
  return {};
}

Result<uint64_t> Writer::append(AppendFile& file, ByteSpan data) {
  std::lock_guard lock(append_mutex_);
  auto offset = file.append(data);
  if (!offset) note_failure(offset.error());
  else bytes_written_.fetch_add(data.size(), kRelaxed);
  return offset;
}

ImageWriter::Totals Writer::totals() const {
  Totals out;
  out.pages_data = pages_data_.load(kRelaxed);
  out.pages_zero = pages_zero_.load(kRelaxed);
  out.pages_parent = pages_unwritten_.load(kRelaxed) + pages_equal_.load(kRelaxed);
  out.bytes_written = bytes_written_.load(kRelaxed);
  auto bytes = [](const std::atomic<uint64_t>& pages) { return pages.load(kRelaxed) * kPageSize; };
  out.saved = {bytes(pages_zero_),   bytes(pages_same_space_), bytes(pages_other_space_), bytes(pages_unwritten_),
               bytes(pages_equal_), bytes(pages_elsewhere_),  bytes_compression_.load(kRelaxed)};
  return out;
}

/// Gives back what chunks take up that no record refers to any more.
Result<void> Writer::clear_outdated(const std::vector<PagemapRecord>& records) {
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> used(files_);
  for (const PagemapRecord& r : records) {
    if (r.data_mask != 0 && r.ancestor == 0) used[r.file].emplace_back(r.offset, r.offset + r.stored_length());
  }
  for (WriterShard& shard : shards_) {
    if (!shard.file) continue;
    CKPT_TRY(shard.file->flush());
    auto& chunks = used[shard.file_number];
    std::sort(chunks.begin(), chunks.end());
    uint64_t end = 0;
    for (const auto& [first, last] : chunks) {
      if (first > end) CKPT_TRY(shard.file->clear(end, first));
      end = std::max(end, last);
    }
    if (shard.file->size() > end) CKPT_TRY(shard.file->clear(end, shard.file->size()));
  }
  return {};
}

Result<AppendFile> Writer::write_pagemap() {
  auto parent_pages = [&](uint64_t address) -> uint16_t {
    std::optional<size_t> block = parent_ ? parent_->pages.find(address) : std::nullopt;
    return block ? static_cast<uint16_t>(parent_->pages.blocks[*block].data_mask |
                                         parent_->pages.blocks[*block].zero_mask)
                 : uint16_t{0};
  };
  BlockIndex::PrecopiedTotals precopied;
  CKPT_TRY_ASSIGN(std::vector<PagemapRecord> records, index_.take(parent_pages, precopied));
  pages_data_.fetch_add(precopied.data, kRelaxed), pages_zero_.fetch_add(precopied.zero, kRelaxed);
  if (precopied_.load(kRelaxed)) {
    pages_unwritten_.fetch_sub(precopied.data + precopied.zero, kRelaxed);
    CKPT_TRY(clear_outdated(records));
  }
  CKPT_TRY_ASSIGN(AppendFile file, AppendFile::create(staged_.path(), kPagemapName, AppendFile::Kind::kHashed));
  CKPT_TRY(file.append(as_bytes(pagemap_header(records.size()))));
  ByteSpan bytes = std::as_bytes(std::span(records));
  constexpr size_t kStep = 1 << 20;
  for (size_t pos = 0; pos < bytes.size(); pos += kStep) {
    CKPT_TRY(file.append(bytes.subspan(pos, std::min(kStep, bytes.size() - pos))));
  }
  bytes_written_.fetch_add(file.size(), kRelaxed);
  return file;
}

Result<void> Writer::hash_pages() {
  WorkerPool pool(files_);
  for (WriterShard& shard : shards_) {
    if (shard.file && !pool.submit([&shard] { return shard.file->add_sha256(); })) break;
  }
  return pool.finish();
}

/// Everything but the manifest, on disk for good, and listed in the manifest.
Result<void> Writer::make_durable(Manifest& manifest) {
  if (files_ == 0) CKPT_TRY(open_file(shards_[0]));
  CKPT_TRY_ASSIGN(AppendFile pagemap, write_pagemap());
  Stopwatch watch;
  std::vector<AppendFile*> files = {&pagemap, &xstate_, &pipes_};
  for (WriterShard& shard : shards_) {
    if (shard.file) files.push_back(&*shard.file);
  }
  manifest.files.clear();
  for (AppendFile* file : files) CKPT_TRY(file->sync());
  if (options_.sha256_pages) CKPT_TRY(hash_pages());
  for (AppendFile* file : files) manifest.files.push_back(file->stored());
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; });
  manifest.stats.bytes_written = bytes_written_.load(kRelaxed);
  manifest.stats.saved = totals().saved;
  const uint64_t took = watch.elapsed_us();
  manifest.stats.phases_us.emplace_back("durable", took);
  trace::interval(trace::Row::kPhases, "durable", watch.started_us(), watch.started_us() + took);
  return {};
}

Result<void> Writer::fill_in(Manifest& manifest) const {
  CKPT_TRY_ASSIGN(manifest.id, random_id());
  manifest.created = rfc3339_now();
  manifest.features = required_features(manifest);
  manifest.parent_path.clear();
  manifest.parent_id.clear();
  manifest.parent_sha256.clear();
  if (!parent_) return {};
  const LoadedImage& parent = parent_->images.front();
  std::error_code ec;
  fs::path here = fs::weakly_canonical(staged_.destination(), ec);
  // In a destination that is a mount point the staging folder lies one level deeper, and is read there, too.
  const bool deeper = staged_.path().parent_path() == staged_.destination();
  fs::path relative = ec || deeper ? fs::path() : parent.dir.lexically_relative(here);
  manifest.parent_path = (relative.empty() ? parent.dir : relative).string();
  manifest.parent_id = parent.manifest.id;
  manifest.parent_sha256 = parent.manifest_sha256;
  return {};
}

Result<void> Writer::write_manifest(const Manifest& manifest) const {
  const std::string json = to_json(manifest);
  // The target may end once this is committed: an image that could not be read again must not pass for one.
  if (auto again = parse_manifest(json); !again) {
    return Error(Code::kBug, kManifestName, "the description of the process is not sound")
        .with_cause(again.error().text());
  }
  if (json.size() > kMaxManifest) {
    return fail(Code::kNoRoom, "", fmt::format("the manifest would have {}, and none is read of more than {}",
                                               human_bytes(json.size()), human_bytes(kMaxManifest)));
  }
  CKPT_TRY(io::write_file(staged_.path() / kManifestDigestName, manifest_digest_line(json)));
  return io::write_file(staged_.path() / kManifestName, json);
}

Result<void> Writer::commit(Manifest& manifest, const Check& check) {
  if (failed_.exchange(true)) return first_failure();
  CKPT_TRY(make_durable(manifest));
  CKPT_TRY(fill_in(manifest));
  CKPT_TRY(write_manifest(manifest));
  if (check) CKPT_TRY(check(staged_.path()));
  const fs::path link = leave_link(manifest);
  Result<void> done = staged_.commit(kManifestName);
  if (!done && !link.empty()) ::unlink(link.c_str());
  return done;
}

/// Tells the parent of this image before it is there, so that there is none that a removal could overlook. A parent
/// that cannot be written to is not told. Returns the link's path.
fs::path Writer::leave_link(const Manifest& manifest) const {
  if (!parent_) return {};
  const fs::path folder = parent_->images.front().dir / kChildrenName;
  ::mkdir(folder.c_str(), 0700);
  std::error_code ec;
  const fs::path here = fs::weakly_canonical(staged_.destination(), ec);
  if (ec) return {};
  const fs::path relative = here.lexically_relative(folder), link = folder / manifest.id;
  return ::symlink((relative.empty() ? here : relative).c_str(), link.c_str()) == 0 ? link : fs::path();
}

/// Held until the new image is committed: `remove_images` leaves the parent alone so long.
Result<UniqueFd> lock_parent(const fs::path& dir) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return fail(Code::kBusy, dir.string(), "is being removed");
  return fd;  // one that cannot be opened: opening the image tells why
}

/// Writing over an image that the new one needs would leave neither.
Result<void> check_not_own_parent(const Chain& parent, const StagedDir& staged) {
  std::error_code ec;
  for (const LoadedImage& image : parent.images) {
    if (fs::equivalent(image.dir, staged.destination(), ec)) {
      return fail(Code::kUsage, staged.destination().string(), "is an image that the new one would refer to");
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ImageWriter>> ImageWriter::create(const fs::path& dir, const Options& options) {
  std::optional<Chain> parent;
  UniqueFd parent_lock;
  if (!options.parent.empty()) {
    CKPT_TRY_ASSIGN(parent_lock, lock_parent(options.parent));
    CKPT_TRY_ASSIGN(Chain chain, open_chain(options.parent));
    if (chain.images.size() == kMaxChain) {
      return Error(Code::kUsage, options.parent.string(), fmt::format("is the last of {} images already", kMaxChain))
          .with_hint("dump without --prev");
    }
    parent = std::move(chain);
  }
  CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(dir, options.force));
  if (parent) CKPT_TRY(check_not_own_parent(*parent, staged));
  CKPT_TRY_ASSIGN(AppendFile xstate, AppendFile::create(staged.path(), kXstateName, AppendFile::Kind::kHashed));
  CKPT_TRY_ASSIGN(AppendFile pipes, AppendFile::create(staged.path(), kPipesName, AppendFile::Kind::kHashed));
  return std::unique_ptr<ImageWriter>(std::make_unique<Writer>(
      std::move(staged), options, std::move(parent), std::move(parent_lock), std::move(xstate), std::move(pipes)));
}

}  // namespace ckpt::store
