// What names a thing on another host: s3://BUCKET/KEY, gs://BUCKET/KEY, http(s)://HOST/PATH, cmd:PROGRAM ARG... PLACE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::remote {

struct Url {
  enum class Scheme { kHttp, kS3, kGoogle, kCommand } scheme = Scheme::kHttp;
  std::string text;    ///< as the user wrote it
  std::string origin;  ///< kHttp: "https://host:port"
  std::string path;    ///< kHttp: from the slash on, percent-encoded as it was written
  std::string query;   ///< kHttp: behind the question mark: of a URL that was signed beforehand
  std::string bucket;  ///< kS3, kGoogle
  std::string key;     ///< kS3, kGoogle: not encoded, without a slash at its front; kCommand: the place
  std::vector<std::string> words;  ///< kCommand: the program and its arguments before the place

  /// The last part of the path or of the key, decoded: what a file of it is called.
  std::string name() const;
};

/// Whether a path that the user gave is one: it begins with one of the schemes.
bool is_url(std::string_view text);

/// Whether one URL names the other, or something below it.
bool lies_within(std::string_view url, std::string_view folder);

/// A URL without slashes at its end.
std::string without_slashes(std::string url);
/// Of such a URL, where its last part begins, behind a slash; what lies beside it has the same in front. 0: nothing can
/// lie beside it.
size_t last_part(std::string_view url);

/// kUsage: no such scheme, no host, bucket, program or place, a user name or password in it (credentials come from the
/// environment).
Result<Url> parse_url(const std::string& text);

/// All but A-Z a-z 0-9 - . _ ~ as %XX; slashes stay where they are where `keep_slashes`.
std::string percent_encode(std::string_view text, bool keep_slashes);
/// %XX undone; what is no such pair stays.
std::string percent_decode(std::string_view text);

}  // namespace ckpt::remote
