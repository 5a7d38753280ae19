// HTTP exchanges by libcurl: connections are kept for the next one, what failed by accident is tried again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::remote {

class Pacer;

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;  ///< "Name: value"
  ByteSpan body = {};                ///< of PUT and POST; what it refers to outlives the exchange
  bool awaited = false;              ///< interrupted between tries alone: without the answer nobody can undo it
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< of the last answer; names in lower case
  std::string body;                            ///< unless a sink took it: at most kMaxBody bytes
  std::string redirected;                      ///< where the last redirection led, as its server says it; empty: none
  bool success() const { return status >= 200 && status < 300; }
  /// "" where there is none.
  const std::string& header(const std::string& name) const;
};

/// Bytes of the body of a success, in order; `head` has no body. False: no more is wanted, which is no failure.
using HttpSink = std::function<bool(const HttpResponse& head, ByteSpan bytes)>;

/// Makes a request anew for each try: signatures hold for minutes, and a range goes on where the last try ended.
using HttpRequestBuilder = std::function<Result<HttpRequest>()>;

/// Thread-safe; each thread that is in an exchange has a connection.
class HttpClient {
 public:
  static constexpr size_t kMaxBody = 64 << 20;

  struct Options {
    bool use_netrc = false;  ///< user names and passwords from ~/.netrc, for the host that they are of
    bool follow = false;     ///< redirections, never from https to http
    bool brief = false;      ///< one try, a second to connect: whether there is a server at all is not known
    bool tidying = false;    ///< a few tries: what cannot be taken back is not worth waiting for
    const Cancel* cancel = nullptr;
  };

  /// kUnsupported: libcurl cannot be loaded. kUsage: CKPT_URL_BANDWIDTH, which all clients keep to, is none.
  static Result<std::unique_ptr<HttpClient>> make(const Options& options);
  ~HttpClient();

  /// Tries again, with longer and longer pauses, what is worth it: a connection that failed or broke, 408, 425, 429 and
  /// 5xx. `progressed`: whether the last try brought something, which starts the count anew. Any other answer of the
  /// server is returned, whatever its status. kIo: the last try failed; kInterrupted.
  Result<HttpResponse> send(const HttpRequestBuilder& make, const HttpSink& sink = {},
                            const std::function<bool()>& progressed = {});

 private:
  struct Handle;
  struct Try;
  HttpClient(const Options& options, Pacer* pacer);
  std::unique_ptr<Handle> take_handle();
  void give_back(std::unique_ptr<Handle> handle);
  Try exchange(const HttpRequest& request, const HttpSink& sink);
  Result<void> wait(unsigned tries, const Try& last) const;

  Options options_;
  Pacer* pacer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

/// The error that an answer is: 401 and 403 kPermission, 404 and 410 kNotFound, 412 kMismatch, else kIo. `detail`: what
/// the server says of it, if anything.
Error http_error(const std::string& subject, const HttpResponse& response, const std::string& detail = {});

/// Exactly `out.size()` bytes of an object of `size` bytes at `offset`, by requests that `make_request` makes for the
/// header "Range: bytes=A-B" that it is given. An answer that has another size, another `etag` (unless one of them is
/// empty) or another range than was asked for is an error; one that has all of the object is cut. What broke off goes
/// on where it broke off.
struct RangeRead {
  std::string subject, etag;
  uint64_t size = 0, offset = 0;
  MutableByteSpan out;
  std::function<Result<HttpRequest>(const std::string& range)> make_request;
  std::function<Error(const HttpResponse&)> error;  ///< what another answer than a success means
};
Result<void> read_range(HttpClient& client, const RangeRead& read);

}  // namespace ckpt::remote
