// How torch.save pickles a contiguous tensor (formats.md 3.3).
#pragma once

#include <string>

#include "formats/pickle/writer.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// `_rebuild_tensor_v2` over the storage `key`, which holds exactly the tensor; `_rebuild_tensor_v3` where torch has no
/// typed storage.
void write_tensor(pickle::Writer& out, tensor::DType dtype, const tensor::Shape& shape, const std::string& key);

/// The persistent id of a storage. `count`: elements of its class; bytes of an untyped one.
void write_storage_id(pickle::Writer& out, const std::string& module, const std::string& type, const std::string& key,
                      uint64_t count, const std::string& location = "cpu");

/// Large storages start at blocks of file systems, which can share them with the source then; others where torch has
/// them.
uint32_t storage_alignment(uint64_t bytes);

}  // namespace ckpt::formats
