#include "lib/store/squash.h"

#include <algorithm>

#include "lib/base/worker_pool.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlocksPerJob = 64;
constexpr uint64_t kStep = 1 << 20;

Result<void> copy_blocks(const ImageReader& reader, size_t first, size_t last, const SquashOptions& options,
                         ImageWriter& writer, ProgressSink& progress) {
  std::vector<std::byte> data(kBlockSize), frame;
  for (size_t i = first; i < last; ++i) {
    const ImageReader::ResolvedBlock& from = reader.blocks()[i];
    Block block;
    block.address = from.address, block.data_mask = from.data_mask, block.zero_mask = from.zero_mask;
    CKPT_TRY_ASSIGN(size_t size, reader.read_block(i, data, frame));
    block.data = ByteSpan(data).first(size);
    if (options.compress) block.frame = frame;
    CKPT_TRY(writer.add_block(block));
    progress.advance(size);
  }
  return {};
}

Result<void> copy_memory(const ImageReader& reader, const SquashOptions& options, ImageWriter& writer,
                         ProgressSink& progress, const Cancel& cancel) {
  uint64_t bytes = 0;
  for (const auto& block : reader.blocks()) bytes += page_count(block.data_mask) * kPageSize;
  progress.begin("squash", bytes);
  WorkerPool pool(options.workers);
  for (size_t first = 0; first < reader.blocks().size(); first += kBlocksPerJob) {
    CKPT_TRY(cancel.check());
    const size_t last = std::min(first + kBlocksPerJob, reader.blocks().size());
    if (!pool.submit([&, first, last] { return copy_blocks(reader, first, last, options, writer, progress); })) break;
  }
  return pool.finish();
}

/// The files "xstate" and "pipes" as they are: the manifest has offsets in them.
Result<void> copy_contents(const ImageReader& reader, ImageWriter& writer) {
  for (const StoredFile& file : reader.manifest().files) {
    for (uint64_t at = 0; at < file.size; at += kStep) {
      const uint64_t size = std::min(kStep, file.size - at);
      if (file.name == kXstateName) {
        CKPT_TRY_ASSIGN(std::vector<std::byte> piece, reader.read_xstate(at, size));
        CKPT_TRY(writer.append_xstate(piece));
      } else if (file.name == kPipesName) {
        CKPT_TRY_ASSIGN(std::vector<std::byte> piece, reader.read_pipe(at, size));
        CKPT_TRY(writer.append_pipe(piece));
      }
    }
  }
  return {};
}

}  // namespace

Result<SquashReport> squash(const fs::path& from, const fs::path& to, const SquashOptions& options,
                            ProgressSink& progress, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(std::unique_ptr<ImageReader> reader, ImageReader::open(from, options.trust));
  CKPT_TRY(reader->check_pinned_pages());
  std::error_code ec;
  fs::path dir = reader->path();
  for (const Manifest* image : reader->chain()) {
    if (fs::equivalent(dir, to, ec)) return fail(Code::kUsage, to.string(), "is an image of the chain itself");
    dir /= image->parent_path;
  }
  ImageWriter::Options writing;
  writing.force = options.force, writing.compress = options.compress, writing.sha256_pages = options.sha256_pages;
  CKPT_TRY_ASSIGN(std::unique_ptr<ImageWriter> writer, ImageWriter::create(to, writing));
  CKPT_TRY(copy_memory(*reader, options, *writer, progress, cancel));
  CKPT_TRY(copy_contents(*reader, *writer));

  SquashReport out;
  out.manifest = reader->manifest();
  out.manifest.job = {};  // its description names this part as it was
  std::erase_if(out.manifest.stats.phases_us,
                [](const auto& phase) { return phase.first == "durable"; });  // comes anew
  out.images = reader->chain().size();
  out.bytes_before = reader->chain_bytes();
  CKPT_TRY(cancel.check());
  CKPT_TRY(writer->commit(out.manifest));
  out.totals = writer->totals();
  return out;
}

}  // namespace ckpt::store
