// One Zarr v2 array as a tensor: its chunk grid compared with the files that are there. No chunk is opened.
#pragma once

#include "formats/finish.h"
#include "formats/zarr/codecs.h"

namespace ckpt::formats {

class ZarrArrays {
 public:
  ZarrArrays(tensor::Catalog& catalog, DamageLog& damage, bool megatron)
      : catalog_(catalog), damage_(damage), megatron_(megatron) {}

  /// `folder`: relative to the catalog's root, empty for the root itself. Damage and unsupported arrays are noted; an Error
  /// is only what stops everything (no permission).
  Result<void> add(const std::string& folder, const std::string& key);
  /// Gives the catalog its decoder where one is needed.
  void finish();

 private:
  void add_chunks(const std::string& folder, const ZarrArray& array, tensor::Tensor& tensor);

  tensor::Catalog& catalog_;
  DamageLog& damage_;
  bool megatron_;
  std::shared_ptr<ZarrDecoder> decoder_ = std::make_shared<ZarrDecoder>();
};

}  // namespace ckpt::formats
