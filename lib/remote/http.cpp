#include "lib/remote/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "lib/remote/curl.h"
#include "lib/remote/home_network.h"
#include "lib/remote/pacer.h"

namespace ckpt::remote {

namespace {

constexpr unsigned kTries = 6;        ///< without any progress
constexpr unsigned kTidyingTries = 3;
constexpr long kConnectTimeout = 10;  ///< s
constexpr long kSilence = 30;         ///< s without a byte
constexpr long kBuffer = 512 << 10, kSmallBuffer = 16 << 10;  ///< the small one where bytes are to come evenly
constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{5000};
constexpr std::chrono::seconds kLongestRetryAfter{30};

bool worth_another_try(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

bool worth_another_try(int status) {
  return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

const char* ca_file() {
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return nullptr;
}

/// "bytes 100-199/1000"; nothing: it is no such text. A total of "*" counts as `size`.
struct ContentRange {
  uint64_t first = 0, last = 0, total = 0;
  static std::optional<ContentRange> parse(const std::string& text, uint64_t size) {
    ContentRange out;
    unsigned long long first = 0, last = 0, total = size;
    if (std::sscanf(text.c_str(), "bytes %llu-%llu/%llu", &first, &last, &total) < 2) return std::nullopt;
    out.first = first, out.last = last, out.total = total;
    return out;
  }
};

}  // namespace

const std::string& HttpResponse::header(const std::string& name) const {
  static const std::string none;
  auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

struct HttpClient::Handle {
  explicit Handle(const Curl& library) : curl(library), easy(library.easy_init()) {}
  ~Handle() {
    if (easy != nullptr) curl.easy_cleanup(easy);
  }
  const Curl& curl;
  CURL* easy;
};

/// One exchange. `failure`: no answer, or a part of one.
struct HttpClient::Try {
  HttpResponse response;
  CURLcode code = CURLE_OK;
  std::string failure;
  bool interrupted = false;

  const Options* options = nullptr;
  Pacer* pacer = nullptr;
  const HttpSink* sink = nullptr;
  curl_off_t sent = 0;  ///< of the body, as far as the pacer knows
  bool awaited = false, enough = false, too_long = false;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    auto& t = *static_cast<Try*>(self);
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) {  // after a redirection, too
      if (const std::string& place = t.response.header("location"); !place.empty()) t.response.redirected = place;
      t.response.headers.clear(), t.response.status = 0;
    }
    if (line.starts_with("HTTP/") && line.find(' ') != std::string_view::npos)
      t.response.status = std::atoi(std::string(line.substr(line.find(' '))).c_str());
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return size;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.front()))) value.remove_prefix(1);
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back()))) value.remove_suffix(1);
    constexpr size_t kMaxHeaders = 200;
    if (t.response.headers.size() < kMaxHeaders) t.response.headers[lower(line.substr(0, colon))] = std::string(value);
    return size;
  }

  static size_t on_body(char* data, size_t, size_t size, void* self) {
    auto& t = *static_cast<Try*>(self);
    t.pacer->passed(size, t.options->cancel);
    if (t.response.success() && *t.sink) {
      t.enough = !(*t.sink)(t.response, as_bytes(std::string_view(data, size)));
      return t.enough ? 0 : size;
    }
    t.too_long = t.response.body.size() + size > kMaxBody;
    if (t.too_long) return 0;
    t.response.body.append(data, size);
    return size;
  }

  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t sent) {
    auto& t = *static_cast<Try*>(self);
    const curl_off_t before = std::exchange(t.sent, sent);
    if (sent > before) t.pacer->passed(static_cast<uint64_t>(sent - before), t.options->cancel);
    t.interrupted = !t.awaited && t.options->cancel != nullptr && t.options->cancel->requested();
    return t.interrupted ? 1 : 0;
  }
};

Result<std::unique_ptr<HttpClient>> HttpClient::make(const Options& options) {
  CKPT_TRY(load_curl());
  CKPT_TRY_ASSIGN(Pacer* const pacer, Pacer::of_environment());
  return std::unique_ptr<HttpClient>(new HttpClient(options, pacer));
}

HttpClient::HttpClient(const Options& options, Pacer* pacer) : options_(options), pacer_(pacer) {}
HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Handle> HttpClient::take_handle() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>(**load_curl());
  auto out = std::move(idle_.back());
  idle_.pop_back();
  return out;
}

void HttpClient::give_back(std::unique_ptr<Handle> handle) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
}

HttpClient::Try HttpClient::exchange(const HttpRequest& request, const HttpSink& sink) {
  Try out;
  out.options = &options_, out.pacer = pacer_, out.sink = &sink, out.awaited = request.awaited;
  const HomeNetwork network;
  if (!network.there()) return out.code = CURLE_FAILED_INIT, out.failure = network.there().error().text(), out;
  std::unique_ptr<Handle> handle = take_handle();
  const Curl& curl = handle->curl;
  CURL* easy = handle->easy;
  if (easy == nullptr) return out.code = CURLE_FAILED_INIT, out.failure = "libcurl has no memory", out;
  curl.easy_reset(easy);  // connections stay
  auto set = [&](CURLoption option, auto value) { curl.easy_setopt(easy, option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  if (options_.follow) {
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, 5L);
    set(CURLOPT_REDIR_PROTOCOLS_STR, request.url.starts_with("https") ? "https" : "http,https");
  }
  if (options_.use_netrc) set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
  if (request.method == "HEAD")
    set(CURLOPT_NOBODY, 1L);
  else
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (const char* file = ca_file()) set(CURLOPT_CAINFO, file);
  set(CURLOPT_CONNECTTIMEOUT, options_.brief ? 1L : kConnectTimeout);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, kSilence);
  const long buffer = pacer_->limits() ? kSmallBuffer : kBuffer;
  set(CURLOPT_BUFFERSIZE, buffer);
  const bool has_body = request.method == "PUT" || request.method == "POST";
  if (has_body) {
    set(CURLOPT_UPLOAD_BUFFERSIZE, buffer);
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  set(CURLOPT_USERAGENT, "ckpt");
  set(CURLOPT_HEADERFUNCTION, &Try::on_header);
  set(CURLOPT_HEADERDATA, &out);
  set(CURLOPT_WRITEFUNCTION, &Try::on_body);
  set(CURLOPT_WRITEDATA, &out);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Try::on_progress);
  set(CURLOPT_XFERINFODATA, &out);
  char reason[CURL_ERROR_SIZE] = "";
  set(CURLOPT_ERRORBUFFER, reason);
  curl_slist* headers = nullptr;
  for (const std::string& header : request.headers) headers = curl.slist_append(headers, header.c_str());
  if (has_body) {  // neither a type that it has not, nor a pause until the server says that it may come
    for (const char* none : {"Content-Type:", "Expect:"}) headers = curl.slist_append(headers, none);
  }
  set(CURLOPT_HTTPHEADER, headers);
  out.code = curl.easy_perform(easy);
  curl.slist_free_all(headers);
  if (out.enough) out.code = CURLE_OK;
  if (out.code != CURLE_OK) {
    out.failure = reason[0] != '\0' ? reason : curl.easy_strerror(out.code);
    if (out.too_long) out.failure = "the answer is longer than any that is expected";
  }
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  give_back(std::move(handle));
  return out;
}

/// Pauses grow, and differ between clients that failed together.
Result<void> HttpClient::wait(unsigned tries, const Try& last) const {
  thread_local std::minstd_rand random{std::random_device{}()};
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(tries, 10u)));
  std::chrono::milliseconds pause(std::uniform_int_distribution<long>(longest.count() / 2, longest.count())(random));
  const int asked = std::atoi(last.response.header("retry-after").c_str());
  if (asked > 0)
    pause = std::max(pause, std::chrono::milliseconds(std::min(std::chrono::seconds(asked), kLongestRetryAfter)));
  constexpr std::chrono::milliseconds kStep{50};
  for (auto end = std::chrono::steady_clock::now() + pause; std::chrono::steady_clock::now() < end;) {
    if (options_.cancel != nullptr) CKPT_TRY(options_.cancel->check());
    std::this_thread::sleep_for(std::min(pause, kStep));
  }
  return {};
}

Result<HttpResponse> HttpClient::send(const HttpRequestBuilder& make, const HttpSink& sink,
                                      const std::function<bool()>& progressed) {
  const unsigned most = options_.brief ? 1 : options_.tidying ? kTidyingTries : kTries;
  for (unsigned tries = 1;; ++tries) {
    CKPT_TRY_ASSIGN(const HttpRequest request, make());
    Try done = exchange(request, sink);
    if (done.interrupted) return fail(Code::kInterrupted, "", "interrupted");
    const bool answered = done.code == CURLE_OK;
    if (answered && !worth_another_try(done.response.status)) return std::move(done.response);
    if (progressed && progressed()) tries = 1;
    if (tries >= most || (!answered && !worth_another_try(done.code))) {
      if (answered) return std::move(done.response);
      const std::string where = request.url.substr(0, request.url.find('?'));
      return fail(Code::kIo, where, done.failure + (tries > 1 ? fmt::format(", {} times in a row", tries) : ""));
    }
    CKPT_TRY(wait(tries, done));
  }
}

Error http_error(const std::string& subject, const HttpResponse& response, const std::string& detail) {
  Code code = Code::kIo;
  if (response.status == 401 || response.status == 403) code = Code::kPermission;
  if (response.status == 404 || response.status == 410) code = Code::kNotFound;
  if (response.status == 412) return {Code::kMismatch, subject, "has changed while it was read"};
  return {code, subject, fmt::format("the server answers {}{}", response.status, detail.empty() ? "" : ": " + detail)};
}

Result<void> read_range(HttpClient& client, const RangeRead& read) {
  uint64_t have = 0, before = 0;
  std::optional<Error> wrong;
  uint64_t skip = 0,
           end = 0;  ///< of the answer: bytes in front of what is wanted, the object's first byte that is not in it
  bool first = true;
  auto begin = [&](const HttpResponse& head) {
    first = false, skip = 0, end = read.size;
    const std::string& etag = head.header("etag");
    auto range = ContentRange::parse(head.header("content-range"), read.size);
    if (range) end = range->last + 1;
    if (!read.etag.empty() && !etag.empty() && etag != read.etag) {
      wrong.emplace(Code::kMismatch, read.subject, "has changed while it was read");
    } else if (range && range->total != read.size) {
      wrong.emplace(Code::kMismatch, read.subject,
                    fmt::format("has changed while it was read: {} bytes then, {} now", read.size, range->total));
    } else if (range && range->first != read.offset + have) {
      wrong.emplace(Code::kCorrupt, read.subject, "the server sends another range than was asked for");
    } else if (!range && head.status == 206) {
      wrong.emplace(Code::kCorrupt, read.subject, "the server does not say which range it sends");
    } else if (!range) {  // a server without ranges sends all of it
      skip = read.offset + have;
      const std::string& length = head.header("content-length");
      if (!length.empty() && std::strtoull(length.c_str(), nullptr, 10) != read.size)
        wrong.emplace(Code::kMismatch, read.subject,
                      fmt::format("has changed while it was read: {} bytes then, {} now", read.size, length));
    }
    return !wrong;
  };
  auto sink = [&](const HttpResponse& head, ByteSpan bytes) {
    if (first && !begin(head)) return false;
    const uint64_t skipped = std::min<uint64_t>(skip, bytes.size());
    skip -= skipped;
    bytes = bytes.subspan(skipped);
    const size_t taken = std::min<size_t>(bytes.size(), read.out.size() - have);
    std::memcpy(read.out.data() + have, bytes.data(), taken);
    have += taken;
    // Who hangs up loses the connection: only where more comes than is wanted.
    return have < read.out.size() || read.offset + have >= end;
  };
  while (have < read.out.size()) {
    auto make = [&] {
      first = true;
      return read.make_request(
          fmt::format("Range: bytes={}-{}", read.offset + have, read.offset + read.out.size() - 1));
    };
    auto progressed = [&] { return have > std::exchange(before, have); };
    CKPT_TRY_ASSIGN(const HttpResponse response, client.send(make, sink, progressed));
    if (wrong) return *wrong;
    if (!response.success()) return read.error(response);
    if (have < read.out.size() && !progressed())
      return fail(Code::kCorrupt, read.subject, fmt::format("the server ends at byte {}", read.offset + have));
  }
  return {};
}

}  // namespace ckpt::remote
