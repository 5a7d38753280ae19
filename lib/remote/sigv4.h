// AWS Signature Version 4, as the documentation of Amazon S3 describes it ("Authenticating Requests"): our own, since
// that of libcurl 7.88 signs some paths and queries wrongly.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace ckpt::remote {

struct AwsCredentials {
  std::string key_id, secret, session_token;
  std::time_t expires = 0;  ///< 0: never
  bool anonymous() const { return key_id.empty(); }
};

struct SignRequest {
  std::string method, host;                    ///< host with its port, where that is no default
  std::string path;                            ///< encoded, as it goes over the wire: S3 encodes it once
  std::map<std::string, std::string> query;    ///< neither name nor value encoded
  std::map<std::string, std::string> headers;  ///< to be signed beside host and x-amz-*; names in lower case
  std::string region, service = "s3";
  std::string payload_sha256 = "UNSIGNED-PAYLOAD";
};

/// "a=1&b=%2F", sorted, as it is signed and must be sent.
std::string canonical_query(const std::map<std::string, std::string>& query);

/// The headers to send, "Name: value": host, x-amz-date, x-amz-content-sha256, x-amz-security-token, those of the
/// request, and Authorization. Anonymous: those of the request alone.
std::vector<std::string> sign_v4(const SignRequest& request, const AwsCredentials& credentials, std::time_t now);

}  // namespace ckpt::remote
