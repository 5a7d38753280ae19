// `zarr.json`: the metadata of one node of a Zarr v3 hierarchy.
//
//   array: zarr_format 3, node_type "array", shape, data_type, chunk_grid {regular: chunk_shape}, chunk_key_encoding
//          {default, v2: separator}, codecs [array->array..., array->bytes, bytes->bytes...], fill_value, attributes,
//          dimension_names, storage_transformers []
//   group: zarr_format 3, node_type "group", attributes, consolidated_metadata {kind "inline", metadata {path: node}}
//
// Any other member is an extension that a reader has to understand, unless it is an object with must_understand false.
#pragma once

#include "formats/zarr/array.h"

namespace ckpt::formats {

/// kCorrupt: malformed. kUnsupported: a data type, codec, grid or extension that is not read here, named. Empty
/// subject.
Result<ZarrArray> parse_zarr_json(std::string_view json);

}  // namespace ckpt::formats
