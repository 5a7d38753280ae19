// The source's own object with parts of it changed: order, classes, tuples and shared storages stay as they are.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>

#include "formats/torch_save/walker.h"
#include "lib/tensor/selection.h"

namespace ckpt::formats {

struct Rewrite {
  using Pair = std::pair<pickle::NodeId, size_t>;         ///< a dict, and the number of a pair in it
  std::map<Pair, std::optional<std::string>> pairs;       ///< those that are left out (nothing), or get this key
  std::unordered_map<pickle::NodeId, uint32_t>
      changed;  ///< tensors of another type or shape: an index into Selection::tensors
};

/// What the selection changes of a torch.save file. Nothing: it cannot be done to the object itself (an element of a
/// list goes, a key moves to another dict, tensors come out of objects), or the file is big endian or has views of
/// storages.
std::optional<Rewrite> plan_rewrite(const TorchFile& file, const Walk& walk, const tensor::Selection& selection);

/// A value of a checkpoint that is no tensor, as a torch.save file of its own.
struct StoredValue {
  std::string key;
  tensor::KeyPath path;
  std::string file;
};

/// Of a torch.save file, or of Megatron's common state: every value, cut as torch's distributed checkpoint cuts them.
/// kUnsupported: values that cannot be written again, each one named; more than 64 MiB of them.
Result<std::vector<StoredValue>> stored_values(const tensor::Catalog& catalog);

/// A torch.save file of the source's object without its tensors, as Megatron splits a state dict: dicts that hold
/// nothing else go with them, None takes a tensor's place in lists and tuples. Empty: nothing is left. kUnsupported: it
/// cannot be a dict, or not be written again.
Result<std::string> file_without_tensors(const tensor::Catalog& catalog);

}  // namespace ckpt::formats
