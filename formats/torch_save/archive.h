// What torch.save wrote: a zip with one pickle and a record per storage (formats.md 3.1, 3.2).
#pragma once

#include <unordered_map>

#include "formats/pickle/torch_tensor.h"
#include "formats/torch_save/stored_layout.h"
#include "formats/zip/zip.h"

namespace ckpt::formats {

struct TorchArchive {
  zip::Archive archive;
  std::vector<std::byte> pickle;  ///< the graph points into it
  pickle::Graph graph;
  bool big_endian = false;        ///< its storages
  std::vector<tensor::Checksum>
      wrong;  ///< of the records read so far (the pickle, version, byte order): CRCs that differ

  /// Where the bytes of a tensor's storage lie, from the start of the zip. kCorrupt: the record is missing or has
  /// another size than the pickle says.
  Result<const zip::Record*> storage(const pickle::TorchTensor& tensor, const std::string& subject) const;
};

/// kUnsupported: TorchScript, versions above 10. Object pickles: 256 MiB at most.
Result<TorchArchive> read_torch_archive(const zip::ByteSource& source);

/// Any file of torch.save: the zip of 1.6 and later, or what came before it.
struct TorchFile {
  std::vector<std::byte> pickle;  ///< the graph points into it
  pickle::Graph graph;
  bool legacy = false;
  bool big_endian = false;
  /// Storages by their key: offset from the start of the source, and size.
  std::unordered_map<std::string, std::pair<uint64_t, uint64_t>> storages;
  std::vector<tensor::Checksum> checksums;  ///< of the storages, from the start of the source; a legacy file has none
  std::vector<tensor::Checksum> wrong;      ///< as in TorchArchive
};
inline constexpr size_t kLegacyHead = 23;  ///< bytes that `begins_legacy_file` looks at
/// Whether a file begins as one of before 1.6: with the magic number, in a pickle of protocol 2 to 5.
bool begins_legacy_file(ByteSpan first);
/// kUnsupported, besides what read_torch_archive has: tar files, `PYTORCH1`.
Result<TorchFile> read_torch_file(const zip::ByteSource& source);

/// An item of a `.distcp` file: one tensor with a storage of its own. torch saves it with the strides that it has:
/// those of a transposed one are not row-major.
struct TensorItem {
  pickle::TorchDType dtype;
  tensor::Shape shape;
  std::optional<StoredLayout> layout;  ///< nothing: row-major without holes
  uint64_t offset = 0, length = 0;     ///< from the tensor's first byte to its last, from the start of the zip
  tensor::Checksum storage;            ///< of its record
  std::vector<tensor::Checksum> wrong; ///< as in TorchArchive
};
Result<TensorItem> read_tensor_item(const zip::ByteSource& source);

}  // namespace ckpt::formats
