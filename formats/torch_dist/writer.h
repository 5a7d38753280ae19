// A torch_dist checkpoint made from any other: every item's file, offset and length known before a byte is written. The
// same selection and options give the same bytes. Megatron's form (metadata.json, common.pt) unless the source is a
// plain torch checkpoint.
#pragma once

#include "formats/writers.h"

namespace ckpt::torch_dist {

/// As Writer::plan. A plain torch checkpoint of any source: .metadata and .distcp files alone, with planner_data where
/// the source knows how its keys were nested.
Result<std::unique_ptr<tensor::Layout>> plan_dcp(const tensor::Selection& selection,
                                                 const formats::WriteOptions& options);

/// As Writer::plan. Objects of a Megatron checkpoint that are not lists of one element are wrapped.
Result<std::unique_ptr<tensor::Layout>> plan_torch_dist(const tensor::Selection& selection,
                                                        const formats::WriteOptions& options);

}  // namespace ckpt::torch_dist
