// The common state of a checkpoint (Megatron's common.pt and what replaced it; a torch.save file as a whole), for
// people.
#pragma once

#include "formats/pickle/render.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// JSON. kNotFound: the checkpoint has none.
Result<std::string> common_state_json(const tensor::Catalog& catalog, const pickle::RenderOptions& options = {});

/// Megatron's `content_metadata` in it (how the optimizer's state is laid out, and so on), compact JSON. Empty: the
/// checkpoint has none, or its common state cannot be read, which `verify` finds.
std::string content_metadata_json(const tensor::Catalog& catalog);

}  // namespace ckpt::formats
