// What an S3 server says in XML.
#pragma once

#include <span>
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

/// Of CreateMultipartUpload: the upload's identifier. kCorrupt: it is no such answer.
Result<std::string> parse_upload_id(const std::string& xml);

/// Of CompleteMultipartUpload: the object's ETag, empty where the answer has none. kCorrupt: it is no such answer; an
/// answer that began as a success may end as an error.
Result<std::string> parse_completed(const std::string& xml);

struct S3Parts {
  std::vector<std::string> etags;  ///< of parts that follow each other
  unsigned next = 0;               ///< what the next page begins behind; 0: that was the last one
};

/// Of ListParts, behind part `after`. kCorrupt: it is no such answer, or a part is missing.
Result<S3Parts> parse_parts(const std::string& xml, unsigned after);

/// What CompleteMultipartUpload wants: the ETags of the parts, from the first on.
std::string completion_document(std::span<const std::string> etags);

/// "NoSuchKey: The specified key does not exist."; empty: the text is no error in XML.
std::string parse_s3_error(const std::string& xml);

}  // namespace ckpt::remote
