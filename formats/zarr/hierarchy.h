// What a Zarr hierarchy's documents say beside the arrays: kinds of nodes, attributes, consolidated metadata.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::formats {

/// A document in another one: `json` points into the text it was found in.
struct ZarrNode {
  std::string path;        ///< of the node below the group, "" for the group itself
  std::string_view json;
};

/// The arrays in `.zmetadata` of version 2: {"metadata": {"path/.zarray": {...}, ...}}. kCorrupt: malformed; empty
/// subject.
Result<std::vector<ZarrNode>> consolidated_v2(std::string_view text);

/// The arrays in a group's `zarr.json`; none if it has no consolidated metadata.
Result<std::vector<ZarrNode>> consolidated_v3(std::string_view text);

/// "array", "group", or "" for anything else, of a `zarr.json`.
std::string node_type(std::string_view text);

/// The member `attributes` of a `zarr.json`, as it stands there; empty: none.
std::string_view attributes_of(std::string_view text);

/// Whether two documents describe the same array: all members but the attributes are equal.
bool same_array(std::string_view a, std::string_view b);

}  // namespace ckpt::formats
