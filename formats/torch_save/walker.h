// What a state dict holds, whatever it is nested in: its tensors, and all else as leaves.
#pragma once

#include <functional>

#include "formats/torch_save/archive.h"
#include "formats/torch_save/dict.h"
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

/// Per node whether it leads to one.
struct Holders {
  std::vector<bool> tensors;
  std::vector<bool> bare_storages;  ///< of a class or function that is not known, or by themselves: of no tensor
};
Holders find_holders(const pickle::Graph& graph);
/// The tensors that `root` is made of, as values, arguments, states, callees or keys, but for those that `reached` is
/// true of and those that a node of `refused` is made of.
std::vector<pickle::NodeId> unreached_tensors(const pickle::Graph& graph, pickle::NodeId root,
                                              const std::vector<bool>& reached,
                                              const std::vector<pickle::NodeId>& refused);

/// Goes through dicts, lists, tuples and sets, and through objects for the tensors in them: a pickled module's
/// parameters have the keys of its state dict; parts of sparse, nested and wrapped tensors (DTensor, torchao's) come by
/// name. A tensor that is not reached is in Walk::unsupported; so is, alone, an object that shares its parts so often
/// that what they stand for is more than is followed.
Result<Walk> walk_state(const pickle::Graph& graph, pickle::NodeId root);
inline Result<Walk> walk_state(const pickle::Graph& graph) { return walk_state(graph, graph.root()); }

/// The names of the values of a torch.save file that are no tensors: what formats of tensors alone cannot hold.
Result<std::vector<std::string>> names_of_other_values(const tensor::Catalog& catalog);

}  // namespace ckpt::formats
