// What an S3 server says in XML.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/remote/backend.h"

namespace ckpt::remote {

struct S3Page {
  std::vector<Object> objects;  ///< names are whole keys
  std::string next;             ///< the continuation token; empty: that was the last page
};

/// Of ListObjectsV2. kCorrupt: it is no such answer.
Result<S3Page> parse_list(const std::string& xml);

/// "NoSuchKey: The specified key does not exist."; empty: the text is no error in XML.
std::string parse_s3_error(const std::string& xml);

}  // namespace ckpt::remote
