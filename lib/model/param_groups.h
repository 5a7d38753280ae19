// Parameters with what an optimizer keeps for each of them, found through the names of the tensors.
#pragma once

#include <string>
#include <vector>

#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// Something an optimizer keeps for a parameter: a moment, the master copy, a step.
struct OptimizerState {
  std::string slot;  ///< "exp_avg", "fp32_param", ...
  const tensor::Tensor* tensor = nullptr;
};

struct ParamGroup {
  std::string name;                    ///< as the model has it; the state's name for it where the model lacks it
  const tensor::Tensor* param = nullptr;       ///< null: an orphan, states of a parameter that is not there
  std::vector<OptimizerState> states;  ///< sorted by slot; empty: the optimizer keeps nothing for it
  std::vector<std::string>
      missing;  ///< slots that others (two, and as many as are like this one) have beside all of its own
  uint64_t bytes() const;
};

struct ParamGroups {
  std::vector<ParamGroup> groups;     ///< sorted by name
  std::vector<const tensor::Tensor*>
      others;  ///< neither a parameter nor a state of one by name: buffers, what lies outside of the model
  size_t states = 0;                  ///< tensors that are states
  size_t by_bucket = 0;               ///< states that Megatron keeps in buckets: no name says whose they are
};

/// Names that are known: Megatron's `optimizer.state.<slot>.<parameter>` (also behind a prefix, `chained_0.`), torch's
/// `optim.state.<parameter>.<slot>` (any word before `state`, or none). The model's own name of a parameter may have up
/// to three parts more in front (`model.`, `module.`): the prefix is used that fits most states. O(n log n).
ParamGroups group_params(const tensor::Catalog& catalog);

/// A parameter without its states, a state without its parameter, a parameter that lacks a state that its likes have:
/// as warnings, since frozen, tied and buffer-like tensors are right without; for a few of them each, the rest counted.
/// Nothing for a checkpoint without optimizer state, or with nothing but that.
std::vector<tensor::Finding> check_params(const ParamGroups& groups);

/// Kinds of state that come together in every optimizer that is known, of which the checkpoint has one and of the
/// others none at all: `check_params` cannot see that, for no parameter has more than the others. As warnings.
std::vector<tensor::Finding> check_kinds(const ParamGroups& groups);

}  // namespace ckpt::model
