// What lies below a URL of plain HTTP, which has no way to ask: as the common servers tell it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::remote {

/// An entry of a page that a server makes of a folder.
struct ListedName {
  std::string name;  ///< decoded, without slashes
  bool folder = false;
  std::optional<uint64_t> size;
};
/// A page of links (nginx's and Apache's autoindex, Python's http.server) or nginx's in JSON. What leads elsewhere, up,
/// or has a query is left out.
std::vector<ListedName> parse_index(const std::string& page);

/// The answer to /api/models/REPOSITORY/tree/REVISION?recursive=true of a server of model repositories; nothing: it is
/// none.
struct ListedFile {
  std::string path;
  uint64_t size = 0;
};
std::optional<std::vector<ListedFile>> parse_repository(const std::string& json);
/// What "/OWNER/NAME/resolve/REVISION/rest" asks about there:
/// "/api/models/OWNER/NAME/tree/REVISION/rest?recursive=true".
std::optional<std::string> repository_query(const std::string& path);

/// The files that an index of shards (model.safetensors.index.json) names, each once; empty: it is none.
std::vector<std::string> parse_weight_map(const std::string& json);

}  // namespace ckpt::remote
