// What a state dict holds, whatever it is nested in: its tensors, and all else as leaves.
#pragma once

#include <functional>

#include "formats/torch_save/archive.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// A value found on the way, under its key: the names and numbers that lead to it, joined by dots.
struct Found {
  std::string key;
  tensor::KeyPath path;
  pickle::NodeId node;
  pickle::NodeId holder =
      pickle::kNoNode;  ///< the dict that has it in its pair number `item`; none: it lies in something else
  uint32_t item = 0;
  bool plain = true;         ///< only dicts, lists, tuples and sets lead to it, and perhaps a Parameter around it
};

struct Walk {
  std::vector<Found> tensors;        ///< `read_torch_tensor` applies
  std::vector<Found>
      leaves;  ///< everything else, as torch's distributed checkpoint cuts it: a list without tensors is one
  std::vector<std::string> warnings; ///< tensors that come apart, objects whose class is not kept
  std::vector<tensor::Unreadable> unsupported;
  bool objects_opened = false;       ///< tensors were taken out of objects
};

bool is_dict(const pickle::Graph& graph, pickle::NodeId id);
/// Which nodes lead to a tensor.
std::vector<bool> find_holders(const pickle::Graph& graph);

/// Goes through dicts, lists, tuples and sets, and through objects for the tensors in them: a pickled module's
/// parameters have the keys of its state dict; parts of sparse, nested and wrapped tensors (DTensor, torchao's) come by
/// name. kCorrupt: an object that repeats itself without end.
Result<Walk> walk_state(const pickle::Graph& graph, pickle::NodeId root);
inline Result<Walk> walk_state(const pickle::Graph& graph) { return walk_state(graph, graph.root()); }

/// The names of the values of a torch.save file that are no tensors: what formats of tensors alone cannot hold.
Result<std::vector<std::string>> names_of_other_values(const tensor::Catalog& catalog);

}  // namespace ckpt::formats
