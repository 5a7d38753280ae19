#include "formats/zarr/array.h"

#include "lib/base/checked.h"

namespace ckpt::formats {

uint64_t ZarrArray::chunk_bytes() const {
  return tensor::element_count(stored_chunk()).value_or(0) * tensor::item_size(dtype);
}

std::optional<uint64_t> ZarrArray::stored_chunk_bytes() const {
  std::optional<uint64_t> out = chunk_bytes();
  for (size_t i = codecs.size(); i-- > 0 && out;) out = stored_bytes(codecs[i], *out);
  return out;
}

tensor::Shape ZarrArray::grid() const {
  tensor::Shape out(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) out[i] = shape[i] / chunks[i] + (shape[i] % chunks[i] != 0 ? 1 : 0);
  return out;
}

std::string ZarrArray::chunk_name(const tensor::Shape& index) const {
  if (index.empty()) return scalar_name;
  std::string out = prefix;
  for (size_t i = 0; i < index.size(); ++i) {
    if (i != 0) out += separator;
    out += std::to_string(index[i]);
  }
  return out;
}

namespace {

bool countable(const tensor::Shape& shape, tensor::DType dtype) {
  auto count = tensor::element_count(shape);
  // Four times as much, so that the sizes of filtered chunks can be counted, too.
  return count && checked_mul<uint64_t>(*count, uint64_t{tensor::item_size(dtype)} * 32);
}

/// Decoding goes by sizes that are known from the inside; past a compressor only those that tell their size can be
/// undone.
Result<void> check_order(std::span<const ZarrCodec> codecs) {
  bool known = true;
  for (size_t i = codecs.size(); i-- > 0;) {
    using Kind = ZarrCodec::Kind;
    const Kind kind = codecs[i].kind;
    const bool tells = kind == Kind::kBlosc || kind == Kind::kZstd || kind == Kind::kLz4 || kind == Kind::kCrc32 ||
                       kind == Kind::kCrc32c || kind == Kind::kAdler32;
    if (!known && !tells)
      return fail(Code::kUnsupported, "", "a codec around a compressor that hides its size is not read");
    known = known && stored_bytes(codecs[i], 0).has_value();
  }
  return {};
}

}  // namespace

Result<void> check_array(ZarrArray& array, const std::string& what) {
  const auto malformed = [&](const char* why) { return fail(Code::kCorrupt, "", "malformed " + what + ": " + why); };
  if (array.shape.size() != array.chunks.size()) return malformed("shape and chunks differ in rank");
  for (uint64_t& chunk : array.chunks) {
    // zarr-python writes chunk length 0 for axes of length 0.
    if (chunk == 0 && tensor::element_count(array.shape) != uint64_t{0}) return malformed("a chunk of length 0");
    chunk = chunk == 0 ? 1 : chunk;
  }
  for (const tensor::Shape* shape : {&array.shape, &array.chunks}) {
    if (!countable(*shape, array.dtype)) return malformed("more elements than can be counted");
  }
  const tensor::Shape* around = &array.chunks;
  for (const ZarrSharding& level : array.sharding) {
    if (level.chunk.size() != array.shape.size()) return malformed("inner chunks of another rank");
    for (size_t i = 0; i < level.chunk.size(); ++i) {
      if (level.chunk[i] == 0 || (*around)[i] % level.chunk[i] != 0)
        return malformed("inner chunks that do not divide their shard");
    }
    around = &level.chunk;
  }
  CKPT_TRY(check_order(array.codecs));
  if (tensor::is_row_major(array.stored_chunk(), array.axes)) array.axes.clear();
  return {};
}

}  // namespace ckpt::formats
