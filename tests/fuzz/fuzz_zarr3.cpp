// `zarr.json` files of arrays and groups, up to the first zero byte; what follows is a chunk for the array's codecs, or
// a shard.
#include "formats/zarr/hierarchy.h"
#include "formats/zarr/shard_index.h"
#include "formats/zarr/zarr_json.h"

namespace formats = ckpt::formats;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find('\0'), text.size());
  const std::string_view json = text.substr(0, end);
  if (auto nodes = formats::consolidated_v3(json)) {
    for (const formats::ZarrNode& node : *nodes) (void)formats::parse_zarr_json(node.json);
  }
  (void)formats::same_array(json, json);
  auto array = formats::parse_zarr_json(json);
  if (!array || end == text.size()) return 0;
  const ckpt::ByteSpan rest = ckpt::as_bytes(text.substr(end + 1));
  for (const formats::ZarrSharding& level : array->sharding) {
    const uint64_t chunks =
        ckpt::tensor::element_count(array->chunks).value() / ckpt::tensor::element_count(level.chunk).value();
    auto bytes = formats::shard_index_bytes(level, chunks);
    if (!bytes || *bytes > rest.size()) continue;
    const auto index = level.index_at_start ? rest.first(*bytes) : rest.last(*bytes);
    (void)formats::parse_shard_index(level, index, chunks, rest.size());
  }
  if (array->chunk_bytes() > 1 << 16) return 0;
  std::vector<std::byte> out(array->chunk_bytes()), plain(out.size());
  if (!formats::decode_steps(array->codecs, rest, out)) return 0;
  if (!array->axes.empty())
    ckpt::tensor::to_row_major(array->stored_chunk(), array->axes, ckpt::tensor::item_size(array->dtype), out, plain);
  return 0;
}
