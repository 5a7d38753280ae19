// Hashes of a checkpoint's files, and of its tensors whatever the format: ckpt.manifest/1.
//
//   {"schema": "ckpt.manifest/1", "format": "torch_dist", "hash": "xxh3-128", "block": 67108864,
//    "files": {"__0_0.distcp": {"size": 70000000, "hashes": ["<of the first block>", "<of the second>"]}, ...},
//    "tensors": {"decoder.weight": {"dtype": "bfloat16", "shape": [4, 4], "hash": "<of the row-major little-endian
//    bytes>"}}}
//
// A file is hashed block by block, so that one large file keeps all cores busy and damage is found to the block; the
// hash of a file of one block is what xxh128sum or sha256sum print.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/digest.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/tensor/read.h"

namespace ckpt::model {

enum class HashKind : uint8_t { kXxh3, kSha256 };
std::string_view hash_name(HashKind kind);
std::optional<HashKind> hash_from_name(std::string_view name);

/// One of the two, as lower-case hex.
class Hasher {
 public:
  explicit Hasher(HashKind kind);
  void update(ByteSpan data);
  std::string finish();

 private:
  std::optional<Xxh3> xxh3_;
  std::optional<Sha256> sha256_;
};

struct Manifest {
  struct File {
    uint64_t size = 0;
    std::vector<std::string> hashes;
  };
  struct TensorHash {
    std::string dtype;
    tensor::Shape shape;
    std::string hash;
  };
  static constexpr uint64_t kBlock = 64 << 20;

  std::string name;            ///< of the file that it was read from; not part of it
  std::string format;
  HashKind hash = HashKind::kXxh3;
  uint64_t block = kBlock;
  std::map<std::string, File> files;
  std::map<std::string, TensorHash> tensors;

  uint64_t block_length(const File& file, size_t index) const { return std::min(block, file.size - index * block); }
};

std::string to_json(const Manifest& manifest);
/// Pure. kCorrupt: no such document. kUnsupported: a later version, another hash.
Result<Manifest> parse_manifest(std::string_view text);
Result<Manifest> read_manifest(const std::filesystem::path& path);

/// Where a checkpoint's own manifest lies: in its folder, or beside a single file.
std::filesystem::path default_manifest_path(const std::filesystem::path& root);

struct ManifestOptions {
  HashKind hash = HashKind::kXxh3;
  bool tensors = false;  ///< also of every tensor; the catalog must come from a read with locate_data
};
/// Of every regular file below the catalog's root but `except` (the manifest that is about to be replaced); links are
/// not followed.
Result<Manifest> make_manifest(const tensor::Catalog& catalog, const std::filesystem::path& except,
                               const ManifestOptions& options, ProgressSink& progress, const Cancel& cancel);
/// Complete and durable under its name, or not there.
Result<void> write_manifest(const Manifest& manifest, const std::filesystem::path& path);

/// Hash of the bytes that a tensor stands for: row-major, little-endian elements.
Result<std::string> hash_tensor(const tensor::Catalog& catalog, const tensor::Tensor& tensor, tensor::FileCache& files,
                                HashKind kind, const std::function<Result<void>(uint64_t)>& advance);

}  // namespace ckpt::model
