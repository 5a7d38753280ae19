#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <future>
#include <optional>

#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/virtual_file.h"
#include "lib/base/worker_pool.h"
#include "lib/store/block_content.h"
#include "lib/store/chain.h"
#include "lib/store/chunk_io.h"
#include "lib/store/description.h"
#include "lib/store/image.h"
#include "lib/store/image_verify.h"
#include "lib/store/sparse_pages.h"

namespace ckpt::store {

namespace {

class Reader final : public ImageReader {
 public:
  Reader(Chain chain, std::future<std::optional<UncheckedPagemap>> ahead)
      : chain_(std::move(chain)), newest_(chain_.images.front()), ahead_(std::move(ahead)) {}

  Result<void> open_contents();
  Result<void> load_pages() override;
  Result<void> check_pinned_pages() override;
  Result<void> load_sparsely() override;
  bool may_have_data(uint64_t first, uint64_t last) const override {
    return !sparse_ || sparse_->may_have_data(first, last);
  }
  Result<size_t> read_block_at(uint64_t address, ResolvedBlock& masks, MutableByteSpan out) const override;
  Result<void> load_pages_of(std::span<const AddressRange> ranges) override;
  std::vector<int> descriptors() const override;

  const Manifest& manifest() const override { return newest().manifest; }
  const std::filesystem::path& path() const override { return newest().dir; }
  std::vector<const Manifest*> chain() const override {
    std::vector<const Manifest*> out;
    for (const LoadedImage& image : chain_.images) out.push_back(&image.manifest);
    return out;
  }
  const std::vector<ResolvedBlock>& blocks() const override { return chain_.pages.blocks; }
  bool is_of_newest(size_t index) const override {
    auto sources = chain_.pages.sources_of(index);
    return std::any_of(sources.begin(), sources.end(), [](const Source& source) { return source.image == 0; });
  }
  Result<size_t> read_block(size_t index, MutableByteSpan out, std::vector<std::byte>& frame) const override {
    return read_resolved(chain_.pages, index, out, frame);
  }
  Result<std::vector<std::byte>> read_xstate(uint64_t offset, uint64_t size) const override {
    return read_part(xstate_.get(), kXstateName, offset, size);
  }
  Result<std::vector<std::byte>> read_pipe(uint64_t offset, uint64_t size) const override {
    return read_part(pipes_.get(), kPipesName, offset, size);
  }
  Result<std::vector<Finding>> verify(ProgressSink& progress, const Cancel& cancel) const override;
  Hash128 content_of(size_t index) const;
  void describe_anew(TreeImage tree) { newest_.manifest.tree = std::move(tree); }
  uint64_t stored_bytes() const override { return newest().stored_bytes(); }
  uint64_t chain_bytes() const override { return chain_.stored_bytes(); }

 private:
  const LoadedImage& newest() const { return newest_; }
  Result<void> open_pages();
  Result<void> open_file(size_t image, size_t file);
  Result<void> read_source(const PageTable& pages, const Source& source, MutableByteSpan out,
                           std::vector<std::byte>& frame) const;
  Result<size_t> read_resolved(const PageTable& pages, size_t index, MutableByteSpan out,
                               std::vector<std::byte>& frame) const;
  Result<std::vector<std::byte>> read_part(int fd, const char* file, uint64_t offset, uint64_t size) const;

  Chain chain_;
  LoadedImage& newest_;  ///< asked for while its parents are added
  std::future<std::optional<UncheckedPagemap>> ahead_;
  std::optional<SparsePages> sparse_;
  bool all_ = false;           ///< `load_pages` has been done
  SparsePages::PageMapPart part_;     ///< what `chain_.pages` refers to until all are there
  std::vector<std::vector<UniqueFd>> pages_;  ///< of each image, each pages file; empty: nothing refers to it
  UniqueFd xstate_, pipes_;
};

Result<void> Reader::load_pages() {
  if (all_) return {};
  if (sparse_) {
    std::vector<std::span<const PagemapRecord>> records;
    for (size_t i = 0; i < chain_.images.size(); ++i) {
      CKPT_TRY_ASSIGN(chain_.images[i].records, sparse_->records_of(i));
      records.emplace_back(chain_.images[i].records);
    }
    CKPT_TRY_ASSIGN(chain_.pages, resolve_pages(chain_.images, std::move(records)));
  } else {
    CKPT_TRY(add_parents(chain_));
    CKPT_TRY(store::load_pages(chain_));
    CKPT_TRY(open_pages());
  }
  all_ = true;
  return {};
}

Result<void> Reader::check_pinned_pages() {
  CKPT_TRY(add_parents(chain_));
  std::optional<WorkerPool> pool;
  for (const LoadedImage& image : chain_.images) {
    for (size_t i = 0; i < image.pages_files(); ++i) {
      const std::string file = pages_file_name(i);
      if (image.stored(file).sha256.empty()) continue;
      if (!pool) pool.emplace();
      if (!pool->submit([&image, file] { return check_digest(image, file); })) break;
    }
  }
  return pool ? pool->finish() : Result<void>();
}

Result<void> Reader::open_file(size_t image, size_t file) {
  std::vector<UniqueFd>& files = pages_[image];
  if (files.size() <= file) files.resize(file + 1);
  if (files[file]) return {};
  CKPT_TRY_ASSIGN(files[file], chain_.images[image].open(pages_file_name(file)));
  return {};
}

/// Opens what blocks are read from. Parents that no block refers to any more take no descriptor.
Result<void> Reader::open_pages() {
  const PageTable& pages = chain_.pages;
  pages_.resize(chain_.images.size());
  size_t last_image = ~size_t{0}, last_file = 0;
  for (const Source& source : pages.sources) {
    const size_t image = pages.holder(source), file = pages.record(source).file;
    if (image == last_image && file == last_file) continue;
    last_image = image, last_file = file;
    CKPT_TRY(open_file(image, file));
  }
  return {};
}

/// Which files blocks are in is not known yet: all of them are opened, unless that would be too many.
Result<void> Reader::load_sparsely() {
  constexpr size_t kMostFiles = 256;
  if (all_) return {};
  CKPT_TRY(add_parents(chain_));
  size_t files = 0;
  for (const LoadedImage& image : chain_.images) files += image.pages_files();
  if (files > kMostFiles) return load_pages();
  CKPT_TRY_ASSIGN(SparsePages sparse, SparsePages::read(chain_.images, ahead_.valid() ? ahead_.get() : std::nullopt));
  pages_.resize(chain_.images.size());
  for (size_t image = 0; image < chain_.images.size(); ++image) {
    for (size_t file = 0; file < chain_.images[image].pages_files(); ++file) CKPT_TRY(open_file(image, file));
  }
  sparse_.emplace(std::move(sparse));
  return {};
}

Result<void> Reader::load_pages_of(std::span<const AddressRange> ranges) {
  if (!sparse_) return {};
  CKPT_TRY_ASSIGN(part_, sparse_->part(ranges));
  chain_.pages = part_.table;
  return {};
}

Result<size_t> Reader::read_block_at(uint64_t address, ResolvedBlock& masks, MutableByteSpan out) const {
  thread_local std::vector<std::byte> frame;
  if (!sparse_) {
    const auto index = chain_.pages.find(address);
    masks = index ? chain_.pages.blocks[*index] : ResolvedBlock{address, 0, 0};
    return masks.data_mask == 0 ? Result<size_t>(0) : read_resolved(chain_.pages, *index, out, frame);
  }
  const AddressRange block{address, address + kBlockSize};
  CKPT_TRY_ASSIGN(const SparsePages::PageMapPart part, sparse_->part({&block, 1}));
  masks = part.table.blocks.empty() ? ResolvedBlock{address, 0, 0} : part.table.blocks[0];
  return masks.data_mask == 0 ? Result<size_t>(0) : read_resolved(part.table, 0, out, frame);
}

std::vector<int> Reader::descriptors() const {
  std::vector<int> out = {xstate_.get(), pipes_.get()};
  for (const auto& files : pages_) {
    for (const UniqueFd& file : files) {
      if (!file) continue;
      out.push_back(file.get());
      const auto elsewhere = io::find_virtual_file(file.get());
      const auto more = elsewhere ? elsewhere->descriptors() : std::vector<int>();
      out.insert(out.end(), more.begin(), more.end());
    }
  }
  return out;
}

Result<void> Reader::open_contents() {
  CKPT_TRY(check_digest(newest(), kXstateName));
  CKPT_TRY(check_digest(newest(), kPipesName));
  CKPT_TRY_ASSIGN(xstate_, newest().open(kXstateName));
  CKPT_TRY_ASSIGN(pipes_, newest().open(kPipesName));
  return {};
}

Result<void> Reader::read_source(const PageTable& pages, const Source& source, MutableByteSpan out,
                                 std::vector<std::byte>& frame) const {
  const PagemapRecord& record = pages.record(source);
  const LoadedImage& image = chain_.images[pages.holder(source)];
  return read_chunk(pages_[pages.holder(source)][record.file].get(), record, out, frame,
                    image.name_of(pages_file_name(record.file)));
}

Result<size_t> Reader::read_resolved(const PageTable& pages, size_t index, MutableByteSpan out,
                                     std::vector<std::byte>& frame) const {
  CKPT_ASSERT(index < pages.blocks.size() && out.size() >= kBlockSize);
  const uint16_t mask = pages.blocks[index].data_mask;
  const size_t size = page_count(mask) * kPageSize;
  for (const Source& source : pages.sources_of(index)) {
    const uint16_t stored = pages.record(source).data_mask;
    if (source.mask == mask && stored == mask) {
      CKPT_TRY(read_source(pages, source, out.first(size), frame));
      if (pages.record(source).codec != Codec::kZstd) frame.clear();
      return size;
    }
    thread_local std::vector<std::byte> scratch(kBlockSize);
    CKPT_TRY(read_source(pages, source, MutableByteSpan(scratch).first(page_count(stored) * kPageSize), frame));
    for (unsigned rest = source.mask; rest != 0; rest &= rest - 1) {
      unsigned page = static_cast<unsigned>(std::countr_zero(rest));
      std::memcpy(out.data() + page_rank(mask, page) * kPageSize, scratch.data() + page_rank(stored, page) * kPageSize,
                  kPageSize);
    }
  }
  frame.clear();
  return size;
}

/// Of pages that lie in several chunks: which of them, and of what.
Hash128 Reader::content_of(size_t index) const {
  const auto sources = chain_.pages.sources_of(index);
  if (sources.size() == 1) {
    const PagemapRecord& record = chain_.pages.record(sources[0]);
    if (sources[0].mask == record.data_mask) return record.hash;
  }
  std::vector<uint64_t> parts;
  for (const Source& source : sources) {
    const PagemapRecord& record = chain_.pages.record(source);
    parts.insert(parts.end(), {record.hash.lo, record.hash.hi, uint64_t{record.data_mask} << 16 | source.mask});
  }
  return xxh3_128(ByteSpan(reinterpret_cast<const std::byte*>(parts.data()), parts.size() * sizeof(uint64_t)));
}

Result<std::vector<std::byte>> Reader::read_part(int fd, const char* file, uint64_t offset, uint64_t size) const {
  auto end = checked_add(offset, size);
  if (!end || *end > newest().stored(file).size) {
    return fail(Code::kCorrupt, newest().name_of(file), fmt::format("has no {} bytes at {}", size, offset));
  }
  std::vector<std::byte> out(size);
  CKPT_TRY(io::pread_exact(fd, out, offset, newest().name_of(file)));
  return out;
}

Result<std::vector<ImageReader::Finding>> Reader::verify(ProgressSink& progress, const Cancel& cancel) const {
  progress.begin("verify", chain_bytes());
  std::vector<Finding> findings;
  for (size_t i = 0; i < chain_.images.size(); ++i)
    CKPT_TRY(verify_files(chain_.images, i, progress, cancel, findings));
  return findings;
}

}  // namespace

void describe_anew(ImageReader& image, TreeImage tree) { static_cast<Reader&>(image).describe_anew(std::move(tree)); }

Hash128 content_of(const ImageReader& image, size_t block) {
  return static_cast<const Reader&>(image).content_of(block);
}

std::pair<size_t, size_t> ImageReader::blocks_of(int space) const {
  const std::vector<ResolvedBlock>& all = blocks();
  auto first_at = [&](uint64_t address) {
    auto before = [](const ResolvedBlock& block, uint64_t a) { return block.address < a; };
    return static_cast<size_t>(std::lower_bound(all.begin(), all.end(), address, before) - all.begin());
  };
  return {first_at(space_base(space)), space + 1 == kMaxSpaces ? all.size() : first_at(space_base(space + 1))};
}

Result<std::unique_ptr<ImageReader>> ImageReader::open_description(const std::filesystem::path& dir, bool read_ahead,
                                                                   Trust trust) {
  std::future<std::optional<UncheckedPagemap>> ahead;
  if (read_ahead) ahead = in_background([dir] { return read_pagemap_ahead(dir); });
  CKPT_TRY_ASSIGN(Chain chain, begin_chain(dir, trust));
  auto reader = std::make_unique<Reader>(std::move(chain), std::move(ahead));
  CKPT_TRY(reader->open_contents());
  return std::unique_ptr<ImageReader>(std::move(reader));
}

Result<std::unique_ptr<ImageReader>> ImageReader::open(const std::filesystem::path& dir, Trust trust) {
  CKPT_TRY_ASSIGN(std::unique_ptr<ImageReader> reader, open_description(dir, false, trust));
  CKPT_TRY(reader->load_pages());
  return reader;
}

bool ImageReader::looks_like_image(const std::filesystem::path& dir) {
  UniqueFd dir_fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir_fd) return false;
  auto begins = [&](const char* file, std::string_view with) {
    auto fd = io::open_regular(dir_fd.get(), file);
    std::array<char, 64> head{};
    const auto st = fd ? io::stat_fd(fd->get(), file) : fail(std::move(fd).error());
    if (!st) return false;
    const size_t size = std::min<uint64_t>(head.size(), static_cast<uint64_t>(st->st_size));
    if (!io::pread_exact(fd->get(), std::as_writable_bytes(std::span(head)).first(size), 0, file)) return false;
    return std::string_view(head.data(), head.size()).find(with) != std::string_view::npos;
  };
  // Either mark will do: a damaged manifest must be told as that, not as a folder of some other kind.
  return begins(kManifestName, "\"ckpt.image/") || begins(kPagemapName, "CKPTPMAP");
}

}  // namespace ckpt::store
