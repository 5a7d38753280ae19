// What an upload that was interrupted has finished: an object among those that it makes, until they are complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::remote {

struct UploadJournal {
  static constexpr const char* kName = ".ckpt-convert.json";
  static constexpr uint64_t kMostBytes = 256 << 20;

  struct File {
    std::string name;
    uint64_t size = 0;
    std::string upload;
    std::vector<std::string> parts;  ///< what the server calls them, from the first on
  };
  std::string plan;  ///< of what: the same plan makes the same files
  std::vector<File> files;
};

std::string to_json(const UploadJournal& journal);
/// kCorrupt: it is none. What it says of uploads is to be compared with what the server says.
Result<UploadJournal> parse_upload_journal(const std::string& text, const std::string& subject);

}  // namespace ckpt::remote
