// Megatron-Core's `zarr` backend, and Zarr v2 arrays and groups of other programs.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

bool recognises_megatron_zarr(const std::filesystem::path& path);
Result<tensor::Catalog> read_megatron_zarr(const std::filesystem::path& path, const ReadOptions& options);

/// An array, or a hierarchy: a folder that holds `.zarray`, `.zgroup` or `.zmetadata` (version 3: `zarr.json`), or
/// folders with arrays. Keys are the arrays' paths below it, with `/` between the parts as Zarr has it; that of an
/// array by itself is its folder's name without `.zarr`.
bool recognises_zarr2(const std::filesystem::path& path);
Result<tensor::Catalog> read_zarr2(const std::filesystem::path& path, const ReadOptions& options);
bool recognises_zarr3(const std::filesystem::path& path);
Result<tensor::Catalog> read_zarr3(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
