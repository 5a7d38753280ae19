#include "lib/remote/sigv4.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace ckpt::remote;

namespace {

constexpr const char* kNothing =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";  // SHA-256 of no bytes
constexpr std::time_t kThen = 1369353600;                                // 2013-05-24T00:00:00Z

/// The user of Amazon's own worked examples ("Signature Calculations for the Authorization Header").
AwsCredentials example() { return {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", 0}; }

SignRequest example_request() {
  SignRequest request;
  request.method = "GET", request.host = "examplebucket.s3.amazonaws.com", request.path = "/";
  request.region = "us-east-1", request.payload_sha256 = kNothing;
  return request;
}

std::string signature(const SignRequest& request) {
  for (const std::string& header : sign_v4(request, example(), kThen)) {
    if (header.starts_with("Authorization: ")) return header.substr(header.rfind('=') + 1);
  }
  return "";
}

}  // namespace

TEST_CASE("signatures: those of Amazon's worked examples") {
  SignRequest request = example_request();
  request.path = "/test.txt";
  request.headers["range"] = "bytes=0-9";
  CHECK(signature(request) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  request = example_request();
  request.query = {{"max-keys", "2"}, {"prefix", "J"}};
  CHECK(signature(request) == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  request = example_request();
  request.query = {{"lifecycle", ""}};
  CHECK(signature(request) == "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_CASE("signatures: a query is sorted and encoded once, a session's token is signed, nobody's request is not") {
  CHECK(canonical_query({{"prefix", "a b/c=d+e"}, {"list-type", "2"}, {"uploads", ""}}) ==
        "list-type=2&prefix=a%20b%2Fc%3Dd%2Be&uploads=");
  AwsCredentials session = example();
  session.session_token = "token";
  const auto headers = sign_v4(example_request(), session, kThen);
  CHECK(std::count(headers.begin(), headers.end(), "x-amz-security-token: token") == 1);
  CHECK(std::any_of(headers.begin(), headers.end(), [](const std::string& h) {
    return h.find("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,") != std::string::npos;
  }));
  CHECK(sign_v4(example_request(), {}, kThen).empty());
}
