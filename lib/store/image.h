// An image on disk: a folder that appears complete and durable, or not at all. Documented in man/ckpt-image.5.
//
//   DIR/manifest.json     the commit point: format version, id, time, host, parent, process, statistics, digests of the
//   files DIR/manifest.sha256   its digest, for `sha256sum -c` DIR/pagemap           fixed-size records, one a block of
//   64 KiB of address space: which pages, where their bytes lie DIR/pages, pages.1 .. the blocks' bytes, raw and
//   page-aligned or zstd; one file for each thread that wrote at a time.
//                         Blocks whose bytes an image of the chain of parents has, wherever, refer to that
//   DIR/xstate, DIR/pipes the threads' extended register areas, the contents of pipes
//   DIR/children/ID       links to the images that have this one as their parent, for those who would remove it
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/digest.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/store/process_image.h"

namespace ckpt::store {

constexpr uint64_t kPageSize = 4096;
constexpr uint64_t kBlockPages = 16;                       ///< a mask of a block fits into uint16_t
constexpr uint64_t kBlockSize = kBlockPages * kPageSize;   ///< 64 KiB, aligned in the target's address space

/// One block of the target's memory as capture hands it over. Page i of the block is bit i of exactly one of the masks,
/// or of none: then the image says nothing of it (anonymous: zero; private file: what the file has).
struct Block {
  uint64_t address =
      0;  ///< of the block's first page, a multiple of kBlockSize; its upper 16 bits name the memory space
  uint16_t data_mask = 0;    ///< pages whose bytes follow
  uint16_t zero_mask = 0;    ///< pages that are known to be zero (they may hide a file's page, or a parent's)
  uint16_t parent_mask = 0;  ///< pages unchanged since they were pre-copied, or since the parent image
  ByteSpan data;             ///< the pages of data_mask, in order, packed; borrowed until the call returns
  ByteSpan frame{};          ///< `data` as one zstd frame, where it is at hand: stored instead of one made anew
};

/// A file of an image. The pages files have no digest of their own: their chunks do, in the page map.
struct StoredFile {
  std::string name;
  uint64_t size = 0;
  std::string xxh128;  ///< as `xxh128sum` prints it; empty: none
  std::string sha256{};  ///< as `sha256sum` prints it; empty: none (a pages file, unless asked for; an older image)
  bool outdated = false; ///< of a pages file: what became outdated before the end still lies between its chunks
  bool operator==(const StoredFile&) const = default;
};

/// Of which job's image (lib/store/job.h) an image is a part; `id` empty: of none.
struct JobPart {
  std::string id;  ///< of the job, 32 hex digits
  uint32_t rank = 0, ranks = 0;
  bool operator==(const JobPart&) const = default;
};

/// What is known of an image from its manifest alone.
struct Manifest {
  std::string id;                     ///< random, 32 hex digits
  std::string created;                ///< RFC 3339
  std::string kind;                   ///< "pre-dump" or "dump"
  std::string parent_path;            ///< relative to the image where possible; empty: standalone
  std::string parent_id;
  std::string parent_sha256;  ///< of the parent's manifest, which says the same of all its files; empty: an older image
  std::vector<std::string>
      features;  ///< what a reader has to know beside the format version (features.h); filled in by `commit`
  std::vector<StoredFile> files;      ///< all but the manifest and its digest; filled in by `commit`
  JobPart job;
  HostFacts host;
  TreeImage tree;
  CaptureStats stats;
  bool operator==(const Manifest&) const = default;
};

/// Takes the bytes of the pages files as they are written, each file from its beginning to its end without gaps. Called
/// from any thread, for one file by one at a time.
struct PagesSink {
  std::function<Result<void>(const std::string& file, uint64_t offset, ByteSpan data)> take;  ///< empty: none
  bool instead = false;  ///< the files themselves are holes: nothing can be read from the image
};

/// Writes one image. `add_block` may be called from any thread: pages that are all zero are found, blocks hashed, those
/// that the image or its chain of parents has already referred to, zstd level 1 tried and dropped where it saves less
/// than a quarter. Memory: nothing beyond the indices, 56 bytes a block and 16 a chunk of the chain.
class ImageWriter {
 public:
  struct Options {
    PagesSink sink = {};
    bool force = false;
    bool compress = true;
    bool sha256_pages = false;     ///< SHA-256 of the pages files, too: they are read once more in the end
    std::filesystem::path parent;  ///< empty: none. Opened and checked by `create`
  };
  /// Totals that only the writer knows.
  struct Totals {
    uint64_t pages_data = 0;  ///< stored here or referred to elsewhere
    uint64_t pages_zero = 0, pages_parent = 0;
    uint64_t bytes_written = 0;
    Savings saved;
  };

  static Result<std::unique_ptr<ImageWriter>> create(const std::filesystem::path& dir, const Options& options);
  virtual ~ImageWriter() = default;

  virtual Result<void> add_block(const Block& block) = 0;
  /// Pages pre-copied, in numbered iterations, while the process was still changing them: all before the first
  /// `add_block`, and none of a block twice in an iteration. What a later `add_block` names in its parent mask is taken
  /// from the latest iteration that has it, else from the parent; everything else of the iterations is dropped. No
  /// parent mask here.
  virtual Result<void> add_precopied(const Block& block, unsigned iteration) = 0;
  /// Appends to the file "xstate" or "pipes"; returns the offset.
  virtual Result<uint64_t> append_xstate(ByteSpan data) = 0;
  virtual Result<uint64_t> append_pipe(ByteSpan data) = 0;
  virtual Totals totals() const = 0;
  /// The folder that becomes the image.
  virtual const std::filesystem::path& staging() const = 0;
  using Check = std::function<Result<void>(const std::filesystem::path& dir)>;
  /// Makes all durable and gives the image its name. id, created, parent_* are filled in here. `manifest.stats` gets
  /// the final bytes_written, what was saved, and a "durable" phase. `check` is called with the folder in which all of
  /// the image is, before it has its name: where it fails nothing is left of the image, and one that it was to replace
  /// is still there.
  virtual Result<void> commit(Manifest& manifest, const Check& check = {}) = 0;
};

/// [first, last), multiples of the page size, with the number of the memory space in the upper bits.
struct AddressRange {
  uint64_t first = 0, last = 0;
};

/// Whose images are read. Their content is checked against accidents in any case; who may write one may have it say
/// anything.
enum class Trust {
  kAnybody,
  kOwn,  ///< only what this user or root owns and nobody else may write, folder and files, parents included: else
         ///< kPermission
};

/// Reads one image with its chain of parents.
class ImageReader {
 public:
  /// A block resolved through the parents: where each page's bytes come from. Sorted by address, no duplicates.
  struct ResolvedBlock {
    uint64_t address = 0;
    uint16_t data_mask = 0;  ///< pages with bytes, here or in a parent
    uint16_t zero_mask = 0;
  };

  /// Opens the manifest, the index and those of all parents, checks their digests and ids. A cut or altered file is
  /// kCorrupt and named; an unknown format version kUnsupported; no manifest kNotFound.
  static Result<std::unique_ptr<ImageReader>> open(const std::filesystem::path& dir, Trust trust = Trust::kAnybody);
  /// The same in steps. The first takes no time in proportion to the memory, and gives an image without pages and
  /// parents: manifest, extended registers and pipes. `load_pages`, called once by any thread, adds them; nothing that
  /// is about pages may be called before it has returned. `read_ahead`: its page map is read meanwhile, by another
  /// thread, for `load_sparsely`.
  static Result<std::unique_ptr<ImageReader>> open_description(const std::filesystem::path& dir,
                                                               bool read_ahead = false, Trust trust = Trust::kAnybody);
  virtual Result<void> load_pages() = 0;
  /// Reads the pages files of the chain that have a SHA-256 and compares (kCorrupt). At any time; opens the parents'
  /// manifests.
  virtual Result<void> check_pinned_pages() = 0;
  /// Makes the next three possible in a fifth of the time of `load_pages`, which may follow, and after which it does
  /// nothing.
  virtual Result<void> load_sparsely() = 0;
  /// Has `blocks` hold at least those that lie in these ranges (sorted, without overlaps), for the time being.
  virtual Result<void> load_pages_of(std::span<const AddressRange> ranges) = 0;
  /// Whether pages of [first, last) have bytes; may be wrong with true. Any thread.
  virtual bool may_have_data(uint64_t first, uint64_t last) const = 0;
  /// `read_block` of the block at `address`, of which there may be nothing: `masks` says. Any thread, also beside
  /// `load_pages`.
  virtual Result<size_t> read_block_at(uint64_t address, ResolvedBlock& masks, MutableByteSpan out) const = 0;
  /// What it reads from: a fork that closes everything else can go on reading.
  virtual std::vector<int> descriptors() const = 0;
  /// True if the folder holds a manifest of ours (cheap; for telling images from model checkpoints).
  static bool looks_like_image(const std::filesystem::path& dir);
  virtual ~ImageReader() = default;

  virtual const Manifest& manifest() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  /// Every image of the chain, this one first.
  virtual std::vector<const Manifest*> chain() const = 0;

  virtual const std::vector<ResolvedBlock>& blocks() const = 0;
  /// Whether pages of the block are of this image and not of its parents: what was written last.
  virtual bool is_of_newest(size_t index) const = 0;
  /// [first, last): the indices in `blocks()` of one memory space.
  std::pair<size_t, size_t> blocks_of(int space) const;
  /// Bytes of the pages in `blocks()[index].data_mask`, in order, packed into `out` (at least 64 KiB). Verifies the
  /// hash of every chunk it reads. Thread-safe. Returns the number of bytes.
  Result<size_t> read_block(size_t index, MutableByteSpan out) const {
    thread_local std::vector<std::byte> frame;
    return read_block(index, out, frame);
  }
  /// The same; where the block lies in zstd as a whole, `frame` comes back with that frame, else empty.
  virtual Result<size_t> read_block(size_t index, MutableByteSpan out, std::vector<std::byte>& frame) const = 0;
  virtual Result<std::vector<std::byte>> read_xstate(uint64_t offset, uint64_t size) const = 0;
  virtual Result<std::vector<std::byte>> read_pipe(uint64_t offset, uint64_t size) const = 0;

  /// Reads every byte of the chain and compares with the hashes; findings name file, offset and address.
  struct Finding {
    std::string file;
    uint64_t offset = 0;
    std::string what;
  };
  virtual Result<std::vector<Finding>> verify(ProgressSink& progress, const Cancel& cancel) const = 0;
  /// Bytes on disk of this image alone, and of the chain.
  virtual uint64_t stored_bytes() const = 0;
  virtual uint64_t chain_bytes() const = 0;
};

/// The manifest of one image, its digest checked, neither page map nor parents opened. Codes as for
/// `ImageReader::open`.
Result<Manifest> read_manifest(const std::filesystem::path& dir);

/// The manifest as JSON and back. `parse_manifest` takes hostile input: exact types, bounds, a size limit of 256 MiB,
/// kCorrupt with the place of the first fault.
std::string to_json(const Manifest& manifest);
Result<Manifest> parse_manifest(std::string_view json);

}  // namespace ckpt::store
