#include "lib/store/image_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/store/chunk_io.h"

namespace ckpt::store {

namespace {

/// Enough to see what is wrong; a file of garbage would make one for each block.
constexpr size_t kMaxFindings = 1000;
constexpr size_t kChunksPerJob = 256;

using Finding = ImageReader::Finding;

auto place(const PagemapRecord& r) {
  return std::make_tuple(r.offset, r.length_less_one, r.hash.lo, r.hash.hi, r.stored_check, page_count(r.data_mask),
                         r.codec);
}

/// The chunks of one pages file in the order in which they lie, repeated ones once. What a descendant says of a chunk
/// is what its owner says of it, or it is one more to be checked.
std::vector<PagemapRecord> chunks_of(const std::deque<LoadedImage>& chain, size_t index, size_t file) {
  std::vector<PagemapRecord> out;
  for (size_t i = 0; i <= index; ++i) {
    for (const PagemapRecord& r : chain[i].records) {
      if (r.data_mask != 0 && i + r.ancestor == index && r.file == file) out.push_back(r);
    }
  }
  std::sort(out.begin(), out.end(), [](const PagemapRecord& a, const PagemapRecord& b) { return place(a) < place(b); });
  out.erase(std::unique(out.begin(), out.end(),
                        [](const PagemapRecord& a, const PagemapRecord& b) { return place(a) == place(b); }),
            out.end());
  return out;
}

class PagesCheck {
 public:
  PagesCheck(int fd, std::string name, uint64_t size, ProgressSink& progress, const Cancel& cancel)
      : fd_(fd), name_(std::move(name)), size_(size), progress_(progress), cancel_(cancel) {}

  /// `gaps`: what lies between chunks is zero, too.
  Result<std::vector<Finding>> run(const std::vector<PagemapRecord>& chunks, bool gaps) {
    WorkerPool pool;
    for (size_t first = 0; first < chunks.size(); first += kChunksPerJob) {
      std::span<const PagemapRecord> job =
          std::span(chunks).subspan(first, std::min(kChunksPerJob, chunks.size() - first));
      if (!pool.submit([this, job] { return check_chunks(job); })) break;
    }
    CKPT_TRY(pool.finish());
    if (gaps) CKPT_TRY(check_gaps(chunks));
    return std::move(findings_);
  }

 private:
  void note(uint64_t offset, std::string what) {
    std::lock_guard lock(mutex_);
    if (findings_.size() < kMaxFindings) findings_.push_back({name_, offset, std::move(what)});
  }

  Result<void> check_chunks(std::span<const PagemapRecord> chunks) {
    std::vector<std::byte> out(kBlockSize), frame;
    for (const PagemapRecord& chunk : chunks) {
      CKPT_TRY(cancel_.check());
      auto read =
          read_chunk(fd_, chunk, MutableByteSpan(out).first(page_count(chunk.data_mask) * kPageSize), frame, name_);
      if (!read && !answers_no(read.error().code)) return read;
      if (!read) note(chunk.offset, read.error().message);
      progress_.advance(chunk.stored_length());
    }
    return {};
  }

  /// Between chunks lie zeros, up to the next page or where outdated pages lay: no hash covers them.
  Result<void> check_gaps(const std::vector<PagemapRecord>& chunks) {
    uint64_t end = 0;
    for (const PagemapRecord& chunk : chunks) {
      CKPT_TRY(check_gap(end, chunk.offset));
      end = std::max(end, chunk.offset + chunk.stored_length());
    }
    return check_gap(end, size_);
  }

  Result<void> check_gap(uint64_t from, uint64_t to) {
    constexpr uint64_t kStep = 64 * 1024;
    std::vector<std::byte> gap(from < to ? std::min(kStep, to - from) : 0);
    for (uint64_t at = from; at < to; at += kStep) {
      MutableByteSpan bytes(gap.data(), std::min(kStep, to - at));
      auto read = io::pread_exact(fd_, bytes, at, name_);
      if (!read && !answers_no(read.error().code)) return read;
      if (read && std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) continue;
      note(from, fmt::format("{} bytes that belong to no block are not zero", to - from));
      return {};
    }
    return {};
  }

  int fd_;
  std::string name_;
  uint64_t size_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  std::mutex mutex_;
  std::vector<Finding> findings_;
};

/// Turns a kCorrupt into a finding.
Result<void> note_damage(Result<void> result, const std::string& file, std::vector<Finding>& findings) {
  if (result || !answers_no(result.error().code)) return result;
  findings.push_back({file, 0, result.error().message});
  return {};
}

Result<void> check_pages_file(const std::deque<LoadedImage>& chain, size_t index, size_t number, ProgressSink& progress,
                              const Cancel& cancel, std::vector<Finding>& findings) {
  const LoadedImage& image = chain[index];
  const std::string name = pages_file_name(number);
  auto fd = image.open(name);
  if (!fd) return note_damage(std::move(fd).error(), image.name_of(name), findings);
  PagesCheck check(fd->get(), image.name_of(name), image.stored(name).size, progress, cancel);
  if (!image.stored(name).sha256.empty())
    CKPT_TRY(note_damage(check_digest(image, name), image.name_of(name), findings));
  CKPT_TRY_ASSIGN(std::vector<Finding> found, check.run(chunks_of(chain, index, number), !image.stored(name).outdated));
  std::sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) { return a.offset < b.offset; });
  findings.insert(findings.end(), found.begin(), found.end());
  return {};
}

}  // namespace

Result<void> verify_files(const std::deque<LoadedImage>& chain, size_t index, ProgressSink& progress,
                          const Cancel& cancel, std::vector<Finding>& findings) {
  const LoadedImage& image = chain[index];
  CKPT_TRY(cancel.check());
  auto manifest = read_manifest(image.dir);
  CKPT_TRY(
      note_damage(manifest ? Result<void>() : Result<void>(manifest.error()), image.name_of(kManifestName), findings));
  for (const char* file : {kPagemapName, kXstateName, kPipesName}) {
    CKPT_TRY(note_damage(check_digest(image, file), image.name_of(file), findings));
    progress.advance(image.stored(file).size);
  }
  for (size_t i = 0; i < image.pages_files(); ++i)
    CKPT_TRY(check_pages_file(chain, index, i, progress, cancel, findings));
  return {};
}

}  // namespace ckpt::store
