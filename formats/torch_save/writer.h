// One file of torch.save out of any checkpoint: `torch.load(weights_only=True, mmap=True)` takes it.
#pragma once

#include "formats/writers.h"

namespace ckpt::formats {

/// As Writer::plan. A dict of all keys; where the source knows how they were nested (torch's planner_data, a torch.save
/// file) they are nested again, as far as no name is taken twice. Objects are what their pickles build; Megatron's
/// common state is merged into the top, as Megatron's own loader of plain tensors does. Each tensor gets a storage of
/// its own, but for those that lie over the same bytes of the source. Of a torch.save file its own object is written,
/// with what was asked to be changed
/// (`plan_rewrite`), where that can be. kUnsupported: an object or
/// a common state whose pickle cannot be written again, each one named.
Result<std::unique_ptr<tensor::Layout>> plan_torch_save(const tensor::Selection& selection,
                                                        const WriteOptions& options);

}  // namespace ckpt::formats
