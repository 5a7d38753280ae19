// A Zarr v3 group out of any checkpoint, uncompressed: chunks whose bytes are the tensors', so that they can be copied
// as they are.
//
//   zarr.json              the group, with the metadata of all nodes consolidated; written last
//   KEY/zarr.json          an array; a `/` in the key makes groups around it, with a zarr.json each
//   KEY/c.I.J              a chunk, whole also at the edge
#pragma once

#include "formats/writers.h"

namespace ckpt::formats {

/// As Writer::plan. Pieces that no grid of equal chunks has are cut anew.
Result<std::unique_ptr<tensor::Layout>> plan_zarr3(const tensor::Selection& selection, const WriteOptions& options);

}  // namespace ckpt::formats
