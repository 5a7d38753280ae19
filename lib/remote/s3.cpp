#include "lib/remote/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "lib/base/text.h"
#include "lib/remote/s3_answers.h"

namespace ckpt::remote {

namespace {

constexpr std::time_t kRenewBefore = 300;  ///< s before credentials run out

/// A bucket's name in the host ("BUCKET.s3.REGION.amazonaws.com") works at Amazon alone, and not with dots in it.
bool in_path(const S3Settings& settings, const std::string& bucket) {
  return !settings.endpoint.empty() || bucket.find('.') != std::string::npos;
}

class S3 final : public Backend {
 public:
  S3(const Url& url, S3Settings settings, std::unique_ptr<HttpClient> client)
      : url_(url), settings_(std::move(settings)), client_(std::move(client)) {
    find_place();
  }

  Result<std::vector<Object>> list(size_t limit) override {
    const bool folder = url_.key.empty() || url_.key.back() == '/';
    if (!folder) {
      CKPT_TRY_ASSIGN(std::optional<Object> single, look_at(url_.key));
      if (single) return std::vector<Object>{std::move(*single)};
    }
    prefix_ = url_.key + (folder ? "" : "/");
    std::vector<Object> out;
    for (std::string next;;) {
      CKPT_TRY_ASSIGN(S3Page page, list_page(next));
      for (Object& object : page.objects) {
        if (!object.name.starts_with(prefix_))
          return fail(Code::kCorrupt, url_.text, "the server lists another folder");
        object.name.erase(0, prefix_.size());
        if (object.name.empty() || object.name.back() == '/') continue;  // what some tools make for a folder
        out.push_back(std::move(object));
      }
      if (out.size() > limit)
        return fail(Code::kUsage, url_.text, fmt::format("has more than {} objects below it", limit));
      if (page.next.empty()) break;
      if (page.next == next) return fail(Code::kCorrupt, url_.text, "the server's list of objects does not go on");
      next = page.next;
    }
    if (out.empty()) return fail(Code::kNotFound, url_.text, "no object has this name, and none lies below it");
    std::sort(out.begin(), out.end(), [](const Object& a, const Object& b) { return a.name < b.name; });
    return out;
  }

  Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) override {
    RangeRead read;
    const std::string key = object.name.empty() ? url_.key : prefix_ + object.name;
    read.subject = object.name.empty() ? url_.text : object.name;
    read.size = object.size, read.etag = object.etag, read.offset = offset, read.out = out;
    read.make_request = [&](const std::string& range) -> Result<HttpRequest> {
      CKPT_TRY(renew());
      auto request = make("GET", key, {});
      request.headers.push_back(range);
      if (!object.etag.empty()) request.headers.push_back("If-Match: " + object.etag);
      return request;
    };
    read.error = [&](const HttpResponse& response) { return error(read.subject, response); };
    return read_range(*client_, read);
  }

 private:
  /// Where requests go: the bucket in the host or in the path.
  void find_place() {
    const bool path = in_path(settings_, url_.bucket);
    origin_ = settings_.endpoint;
    if (origin_.empty())
      origin_ = fmt::format("https://{}s3.{}.amazonaws.com", path ? "" : url_.bucket + ".", settings_.region);
    while (!origin_.empty() && origin_.back() == '/') origin_.pop_back();
    base_ = path ? "/" + url_.bucket : "";
  }

  HttpRequest make(const std::string& method, const std::string& key, const std::map<std::string, std::string>& query) {
    SignRequest what;
    what.method = method;
    const size_t host = origin_.find("://") + 3, below = origin_.find('/', host);
    what.host = origin_.substr(host, below == std::string::npos ? below : below - host);
    what.path = (below == std::string::npos ? "" : origin_.substr(below)) + base_ + "/" + percent_encode(key, true);
    what.query = query, what.region = settings_.region;
    HttpRequest request;
    request.method = method;
    request.url = origin_.substr(0, below) + what.path + (query.empty() ? "" : "?" + canonical_query(query));
    std::lock_guard lock(mutex_);
    request.headers = sign_v4(what, settings_.credentials, std::time(nullptr));
    return request;
  }

  Result<HttpResponse> send(const std::string& method, const std::string& key,
                            const std::map<std::string, std::string>& query) {
    for (bool moved = false;; moved = true) {
      CKPT_TRY(renew());
      CKPT_TRY_ASSIGN(HttpResponse response,
                      client_->send([&] { return Result<HttpRequest>(make(method, key, query)); }));
      const std::string& region = response.header("x-amz-bucket-region");
      const bool elsewhere = !region.empty() && region != settings_.region && !response.success();
      if (!elsewhere || moved) return response;
      settings_.region = region;  // the answer says where the bucket is
      find_place();
    }
  }

  Result<void> renew() {
    std::lock_guard lock(mutex_);
    const AwsCredentials& now = settings_.credentials;
    if (now.expires == 0 || std::time(nullptr) + kRenewBefore < now.expires) return {};
    CKPT_TRY_ASSIGN(S3Settings fresh, find_s3_settings(true));
    settings_.credentials = std::move(fresh.credentials);
    return {};
  }

  /// The object of this key; nothing: there is none, or nobody says.
  Result<std::optional<Object>> look_at(const std::string& key) {
    CKPT_TRY_ASSIGN(const HttpResponse response, send("HEAD", key, {}));
    if (response.status == 404 || response.status == 403) return std::optional<Object>();
    if (!response.success()) return error(url_.text, response);
    if (response.header("content-length").empty())
      return fail(Code::kCorrupt, url_.text, "the server does not tell its size");
    Object out;
    out.size = std::strtoull(response.header("content-length").c_str(), nullptr, 10);
    out.etag = response.header("etag");
    return std::optional<Object>(std::move(out));
  }

  Result<S3Page> list_page(const std::string& next) {
    std::map<std::string, std::string> query = {{"list-type", "2"}, {"prefix", prefix_}};
    if (!next.empty()) query["continuation-token"] = next;
    CKPT_TRY_ASSIGN(const HttpResponse response, send("GET", "", query));
    if (!response.success()) return error(url_.text, response);
    return parse_list(response.body);
  }

  Error error(const std::string& subject, const HttpResponse& response) {
    Error out = http_error(subject, response, parse_s3_error(response.body));
    if (out.code == Code::kPermission && settings_.credentials.anonymous())
      out.hint = "no credentials were found: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (AWS_PROFILE)";
    return out;
  }

  const Url url_;
  std::mutex mutex_;  ///< of settings_.credentials
  S3Settings settings_;
  std::unique_ptr<HttpClient> client_;
  std::string origin_, base_, prefix_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_s3(const Url& url, const Cancel* cancel) {
  HttpClient::Options options;
  options.cancel = cancel;
  CKPT_TRY_ASSIGN(auto client, HttpClient::make(options));
  const bool google = url.scheme == Url::Scheme::kGoogle;
  CKPT_TRY_ASSIGN(S3Settings settings, google ? find_google_settings() : find_s3_settings(true));
  return std::unique_ptr<Backend>(new S3(url, std::move(settings), std::move(client)));
}

}  // namespace ckpt::remote
