// The common state of a checkpoint (Megatron's common.pt and what replaced it; a torch.save file as a whole), for people.
#pragma once

#include "formats/pickle/render.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// JSON. kNotFound: the checkpoint has none.
Result<std::string> common_state_json(const tensor::Catalog& catalog, const pickle::RenderOptions& options = {});

}  // namespace ckpt::formats
