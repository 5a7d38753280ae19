// `.zarray`: the metadata of one Zarr v2 array (formats.md 1.6).
#pragma once

#include "formats/zarr/array.h"

namespace ckpt::formats {

/// kCorrupt: malformed. kUnsupported: a dtype, codec, filter or version that is not read here, named.
/// `megatron`: `V2` is bfloat16. The subject of errors is left empty.
Result<ZarrArray> parse_zarray(std::string_view json, bool megatron);

}  // namespace ckpt::formats
