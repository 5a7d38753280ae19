// The archives inside .distcp files: one tensor each, in the form that torch.load(weights_only=True) takes.
#pragma once

#include <string>

#include "formats/zip/writer.h"
#include "lib/tensor/catalog.h"

namespace ckpt::torch_dist {

/// An archive that holds one contiguous tensor. Everything but the tensor's bytes and their CRC is known beforehand.
struct TensorRecord {
  std::string pickle;   ///< data.pkl
  zip::Layout layout;   ///< records kPickle, kData, kVersion
  static constexpr size_t kPickle = 0, kData = 1, kVersion = 2;

  uint64_t data_offset() const { return layout.data_offset(kData); }
  uint64_t data_size() const { return layout.data_size(kData); }
  uint64_t size() const { return layout.size(); }
  /// From the archive's start to data_offset().
  std::string head(uint32_t data_crc) const;
  /// From the end of the data to size().
  std::string tail(uint32_t data_crc) const;
};

TensorRecord tensor_record(tensor::DType dtype, const tensor::Shape& shape);

/// What an archive's start must be a multiple of in its .distcp file.
uint32_t record_alignment(uint64_t data_size);

/// A torch.save file of an empty dict: the common state of a source that has none.
std::string empty_dict_file();
constexpr const char* kNoCommonState = "the source has no common state: common.pt holds an empty dict";

/// metadata.json, in the form that every release accepts (formats.md 1.2).
constexpr const char* kMetadataJson =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",)"
    R"( "common_backend_version": 1})";

}  // namespace ckpt::torch_dist
