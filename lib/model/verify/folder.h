// A checkpoint's folder as a list of names: what lies in it that no reader asked for.
#pragma once

#include <functional>

#include "lib/tensor/catalog.h"

namespace ckpt::model {

struct FolderEntry {
  std::string path;  ///< relative to the root
  uint64_t size = 0;
};
/// Regular files below `root` (itself where it is one), sorted by path; links are not followed. kCorrupt past 8
/// million.
Result<std::vector<FolderEntry>> list_files(const std::filesystem::path& root);

/// Links and where they lead, pipes and devices, names that differ only in case or hold control characters, data files
/// that no metadata refers to. `note` takes the findings; those marked as warnings are odd, the others are damage.
Result<void> check_folder(const tensor::Catalog& catalog, const std::function<void(tensor::Finding)>& note);

}  // namespace ckpt::model
