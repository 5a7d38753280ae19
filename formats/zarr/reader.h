// Megatron-Core's `zarr` backend, and Zarr v2 arrays and groups of other programs.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

bool recognises_megatron_zarr(const std::filesystem::path& path);
Result<tensor::Catalog> read_megatron_zarr(const std::filesystem::path& path, const ReadOptions& options);

/// A folder that holds `.zarray`, `.zgroup` or `.zmetadata`, or folders with `.zarray`. Keys are the arrays' paths below it.
bool recognises_zarr2(const std::filesystem::path& path);
Result<tensor::Catalog> read_zarr2(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
