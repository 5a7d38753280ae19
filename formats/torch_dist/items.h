// The items of `.distcp` files: whether they lie where `.metadata` says, and where in them a tensor's bytes are.
#pragma once

#include "formats/finish.h"
#include "formats/torch_dist/metadata.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// Sizes of the data files; one that is missing or no regular file is damage. Then every item's range, and that no two
/// items of a file overlap.
void check_item_ranges(const DcpMetadata& metadata, tensor::Catalog& catalog, DamageLog& damage);

/// Opens the items and sets Shard::where and the catalog's checksums; decodes what is encoded of the objects. Several
/// threads.
Result<void> locate_items(DcpMetadata& metadata, tensor::Catalog& catalog, DamageLog& damage);

/// For items that torch's zstd extension wrote, and tensors that were saved with strides: `where` is the whole item.
std::shared_ptr<const tensor::Decoder> item_decoder();

}  // namespace ckpt::formats
