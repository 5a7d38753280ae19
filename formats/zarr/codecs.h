// The codecs of Zarr v2, as numcodecs frames them, and what turns a chunk into little-endian row-major bytes.
#pragma once

#include <unordered_map>

#include "formats/zarr/zarray.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// Exactly `out.size()` bytes or kAnswerNo: a stream that holds less or more is damage.
Result<void> decompress(ZarrCodec codec, ByteSpan encoded, MutableByteSpan out);

/// Decodes the chunks of the arrays that were put into it.
class ZarrDecoder : public tensor::Decoder {
 public:
  void add(const std::string& key, const ZarrArray& array) { arrays_[key] = array; }
  bool empty() const { return arrays_.empty(); }
  Result<void> decode(const tensor::Tensor& tensor, const tensor::Shard& shard, ByteSpan encoded,
                      MutableByteSpan out) const override;

 private:
  std::unordered_map<std::string, ZarrArray> arrays_;
};

}  // namespace ckpt::formats
