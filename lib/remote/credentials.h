// Whose requests to S3 are, and where they go: from the environment, the profile files, the role of a container or of
// an instance, in this order, as the AWS command line and its libraries have it.
#pragma once

#include <mutex>
#include <string>

#include "lib/base/result.h"
#include "lib/remote/http.h"
#include "lib/remote/sigv4.h"

namespace ckpt::remote {

struct S3Settings {
  AwsCredentials credentials;
  std::string region;    ///< "us-east-1" where nothing says
  std::string endpoint;  ///< "http://127.0.0.1:9000"; empty: Amazon's own for the region
  bool host_style = false, path_style = false;  ///< where the bucket is named, should the profile say so
};

/// kUsage: a profile that was asked for and is nowhere. Without credentials requests go unsigned: a public bucket needs
/// none. Asks over the network only where the environment names a container's role, or where `instance_role`.
Result<S3Settings> find_s3_settings(bool instance_role);

/// Settings of gs://: the HMAC key of Google Cloud Storage in GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, else those of
/// S3; the endpoint of GS_ENDPOINT_URL, else Google's own.
Result<S3Settings> find_google_settings();

/// A text of the form of ~/.aws/config: the values of one section; of several below "s3 =", "s3.addressing_style" is
/// one.
std::map<std::string, std::string> parse_profile(const std::string& text, const std::string& section);

}  // namespace ckpt::remote
