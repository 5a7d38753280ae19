// Megatron 0.8 to 0.15 store flattened optimiser tensors with one axis more: shape f + (prod(G / f),), a row per model
// shard (formats.md 2.7). Here they get their original shape G back: a range of a row becomes a few boxes of G.
#pragma once

#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// Rewrites `tensor` in place. False, and nothing changed, when `original` does not fit its stored shape or chunks, or
/// when a shard is encoded (a part of it could not be named).
bool undo_reformulation(tensor::Tensor& tensor, const tensor::Shape& original);

/// What torch 2.9's writer lost (formats.md 2.2): the original shape of an optimiser tensor is the shape of the model
/// tensor that its key ends with, if the stored shape is a reformulation of that one. Nothing otherwise. `shape_of`
/// gives the shape of a key, or null.
template <class ShapeOf>
std::optional<tensor::Shape> guess_original(const tensor::Tensor& tensor, ShapeOf shape_of);

/// Is `stored` = f + (prod(original / f),) for fragment counts f?
bool is_reformulation(const tensor::Shape& stored, const tensor::Shape& original);

/// The key of the model tensor whose optimizer state "...optimizer.state.<kind>.<model key>" is. Nothing: it is none.
std::optional<std::string> model_key_of(const std::string& key);

template <class ShapeOf>
std::optional<tensor::Shape> guess_original(const tensor::Tensor& tensor, ShapeOf shape_of) {
  const auto model = model_key_of(tensor.key);
  if (!model) return std::nullopt;
  const tensor::Shape* shape = shape_of(*model);
  if (shape == nullptr || !is_reformulation(tensor.shape, *shape)) return std::nullopt;
  return *shape;
}

}  // namespace ckpt::formats
