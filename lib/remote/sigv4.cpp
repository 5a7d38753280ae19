#include "lib/remote/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "lib/base/bytes.h"
#include "lib/base/digest.h"
#include "lib/base/hex.h"
#include "lib/remote/url.h"

namespace ckpt::remote {

namespace {

std::string hmac(const std::string& key, const std::string& text) {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), out, &size);
  return {reinterpret_cast<char*>(out), size};
}

std::string time_text(std::time_t now) {
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[20];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

}  // namespace

std::string canonical_query(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> encoded;  // sorted as encoded
  for (const auto& [name, value] : query) encoded[percent_encode(name, false)] = percent_encode(value, false);
  std::string out;
  for (const auto& [name, value] : encoded) out += (out.empty() ? "" : "&") + name + "=" + value;
  return out;
}

std::vector<std::string> sign_v4(const SignRequest& request, const AwsCredentials& credentials, std::time_t now) {
  std::map<std::string, std::string> headers = request.headers;
  std::vector<std::string> out;
  if (credentials.anonymous()) {
    for (const auto& [name, value] : headers) out.push_back(name + ": " + value);
    return out;
  }
  const std::string time = time_text(now), day = time.substr(0, 8);
  headers["host"] = request.host;
  headers["x-amz-date"] = time;
  headers["x-amz-content-sha256"] = request.payload_sha256;
  if (!credentials.session_token.empty()) headers["x-amz-security-token"] = credentials.session_token;
  std::string canonical, names;
  for (const auto& [name, value] : headers) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
    out.push_back(name + ": " + value);
  }
  const std::string what = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                                       canonical_query(request.query), canonical, names, request.payload_sha256);
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", day, request.region, request.service);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, sha256_hex(as_bytes(what)));
  std::string key = "AWS4" + credentials.secret;
  for (const std::string& part : {day, request.region, request.service, std::string("aws4_request")})
    key = hmac(key, part);
  out.push_back(fmt::format("Authorization: AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                            credentials.key_id, scope, names, bytes_to_hex(as_bytes(hmac(key, to_sign)))));
  return out;
}

}  // namespace ckpt::remote
