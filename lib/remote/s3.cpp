#include "lib/remote/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>

#include "lib/base/text.h"
#include "lib/remote/md5.h"
#include "lib/remote/s3_answers.h"

namespace ckpt::remote {

namespace {

constexpr int kBadRequest = 400;
constexpr std::time_t kRenewBefore = 300;  ///< s before credentials run out

/// A bucket's name in the host ("BUCKET.s3.REGION.amazonaws.com") works at Amazon, at others where the profile says so,
/// and not with dots in it.
bool in_path(const S3Settings& settings, const std::string& bucket) {
  const bool in_host = settings.endpoint.empty() ? !settings.path_style : settings.host_style;
  return !in_host || bucket.find('.') != std::string::npos;
}

using Query = std::map<std::string, std::string>;

/// What is sent beside the place.
struct Content {
  std::vector<std::string> headers = {};  ///< not signed
  ByteSpan body = {};
  bool awaited = false;                   ///< HttpRequest::awaited
};

/// Of content that the server shall check.
std::vector<std::string> md5_header(const std::optional<Md5>& md5) {
  if (!md5) return {};
  return {"Content-MD5: " + base64(*md5)};
}

/// Whether the ETag of an answer is the MD5 of what was sent, as it is unless the bucket encrypts with keys of its own.
bool is_md5(const HttpResponse& response) {
  return !response.header("x-amz-server-side-encryption").starts_with("aws:") &&
         response.header("x-amz-server-side-encryption-customer-algorithm").empty();
}

class S3 final : public WritableBackend {
 public:
  S3(const Url& url, S3Settings settings, std::unique_ptr<HttpClient> client, std::unique_ptr<HttpClient> tidier)
      : url_(url), settings_(std::move(settings)), client_(std::move(client)), tidier_(std::move(tidier)) {
    find_place();
    prefix_ = url_.key + (url_.key.empty() || url_.key.back() == '/' ? "" : "/");
  }

  Result<std::vector<Object>> list(size_t limit) override {
    const bool folder = url_.key.empty() || url_.key.back() == '/';
    if (!folder) {
      CKPT_TRY_ASSIGN(std::optional<Object> single, look_at(url_.key));
      if (single) return std::vector<Object>{std::move(*single)};
    }
    constexpr size_t kMostEmpty = 1000;  ///< pages that add nothing
    std::vector<Object> out;
    size_t before = 0, empty = 0;
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
      empty = out.size() == before ? empty + 1 : 0;
      before = out.size();
      if (page.next == next || empty > kMostEmpty)
        return fail(Code::kCorrupt, url_.text, "the server's list of objects does not go on");
      next = page.next;
    }
    if (out.empty()) return fail(Code::kNotFound, url_.text, "no object has this name, and none lies below it");
    std::sort(out.begin(), out.end(), [](const Object& a, const Object& b) { return a.name < b.name; });
    return out;
  }

  Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) override {
    RangeRead read;
    const std::string key = key_of(object.name);
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

  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    if (only_if_absent) CKPT_TRY(check_absent(name, ""));
    const std::optional<Md5> md5 = md5_of(bytes);
    const std::string etag = md5 ? hex(*md5) : "";
    CKPT_TRY_ASSIGN(const HttpResponse response, send_new("PUT", name, {}, {md5_header(md5), bytes}, only_if_absent));
    if (response.success()) return check_etag(name, response, response.header("etag"), etag);
    return ours_already(name, response, etag) ? Result<void>() : error(subject(name), response);
  }

  Result<std::string> begin_upload(const std::string& name) override {
    // One whose name is not heard stays, and costs its owner money.
    CKPT_TRY_ASSIGN(const HttpResponse response,
                    send(*client_, "POST", key_of(name), {{"uploads", ""}}, {.awaited = true}));
    if (!response.success()) return error(subject(name), response);
    return parse_upload_id(response.body);
  }

  Result<std::string> upload_part(const std::string& name, const std::string& upload, unsigned number,
                                  ByteSpan bytes) override {
    const Query query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}};
    const std::optional<Md5> md5 = md5_of(bytes);
    const bool named = md5 && etags_ == Etags::kAreMd5;
    CKPT_TRY_ASSIGN(HttpResponse response, send(*client_, "PUT", key_of(name), query,
                                                {named ? std::vector<std::string>() : md5_header(md5), bytes}));
    if (named && response.status == kBadRequest) {  // a bucket whose objects are locked insists on it
      etags_ = Etags::kDoNotSuffice;
      CKPT_TRY_ASSIGN(response, send(*client_, "PUT", key_of(name), query, {md5_header(md5), bytes}));
    }
    if (!response.success()) return error(subject(name), response);
    const std::string& etag = response.header("etag");
    if (etag.empty()) return fail(Code::kCorrupt, subject(name), "the server does not name a part that it was sent");
    CKPT_TRY(check_etag(name, response, etag, md5 ? hex(*md5) : ""));
    if (etags_ != Etags::kDoNotSuffice)
      etags_ = md5 && without_quotes(etag) == hex(*md5) ? Etags::kAreMd5 : Etags::kUnknown;
    return etag;
  }

  Result<void> complete_upload(const std::string& name, const std::string& upload, std::span<const std::string> parts,
                               bool only_if_absent) override {
    const std::string document = completion_document(parts), etag = etag_of_parts(parts);
    if (only_if_absent) CKPT_TRY(check_absent(name, etag));
    const Content content{{}, as_bytes(document)};
    CKPT_TRY_ASSIGN(const HttpResponse response,
                    send_new("POST", name, {{"uploadId", upload}}, content, only_if_absent));
    if (!response.success())
      return ours_already(name, response, etag) ? Result<void>() : error(subject(name), response);
    const std::string failed = parse_s3_error(response.body);
    if (!failed.empty()) return fail(Code::kIo, subject(name), "the server answers " + failed);
    CKPT_TRY_ASSIGN(const std::string completed, parse_completed(response.body));
    return check_etag(name, response, completed, etag);
  }

  Result<std::vector<std::string>> list_parts(const std::string& name, const std::string& upload) override {
    std::vector<std::string> out;
    for (unsigned after = 0;;) {
      Query query = {{"uploadId", upload}};
      if (after != 0) query["part-number-marker"] = std::to_string(after);
      CKPT_TRY_ASSIGN(const HttpResponse response, send(*client_, "GET", key_of(name), query));
      if (!response.success()) return error(subject(name), response);
      CKPT_TRY_ASSIGN(S3Parts page, parse_parts(response.body, after));
      out.insert(out.end(), page.etags.begin(), page.etags.end());
      after = page.next;
      if (after == 0) return out;
      if (out.size() > kMostParts) return fail(Code::kCorrupt, subject(name), "an upload has too many parts");
    }
  }

  Result<void> abort_upload(const std::string& name, const std::string& upload) override {
    return tidy(name, {{"uploadId", upload}});
  }
  Result<void> remove(const std::string& name) override { return tidy(name, {}); }

 private:
  std::string key_of(const std::string& name) const { return name.empty() ? url_.key : prefix_ + name; }
  const std::string& subject(const std::string& name) const { return name.empty() ? url_.text : name; }

  /// Whether parts need to be sent with their MD5: not where the server has told that of another part, as a part that
  /// differs is never completed, and the server is spared reckoning it a second time.
  enum class Etags { kUnknown, kAreMd5, kDoNotSuffice };

  Result<void> tidy(const std::string& name, const Query& query) {
    CKPT_TRY_ASSIGN(const HttpResponse response, send(*tidier_, "DELETE", key_of(name), query));
    if (response.success() || response.status == 404) return {};
    return error(subject(name), response);
  }

  /// Amazon's own server keeps to the condition that it is sent. Others take it and write all the same (rclone's): they
  /// are asked before, which leaves a moment for others. `ours`: the ETag of what an earlier try may have put.
  Result<void> check_absent(const std::string& name, const std::string& ours) {
    if (url_.scheme == Url::Scheme::kS3 && settings_.endpoint.empty()) return {};
    CKPT_TRY_ASSIGN(const std::optional<Object> there, look_at(key_of(name)));
    if (!there || (!ours.empty() && without_quotes(there->etag) == ours)) return {};
    return fail(Code::kMismatch, subject(name), "is there already");
  }

  /// Where a server does not know conditions, it is asked without.
  Result<HttpResponse> send_new(const std::string& method, const std::string& name, const Query& query, Content content,
                                bool only_if_absent) {
    if (only_if_absent && url_.scheme == Url::Scheme::kS3 && knows_conditions_) {
      Content conditional = content;
      conditional.headers.emplace_back("If-None-Match: *");
      CKPT_TRY_ASSIGN(HttpResponse response, send(*client_, method, key_of(name), query, conditional));
      if (response.status != 501) return response;
      knows_conditions_ = false;
    }
    return send(*client_, method, key_of(name), query, content);
  }

  /// Whether a failure is only that an earlier try had succeeded, of which the answer was lost.
  bool ours_already(const std::string& name, const HttpResponse& response, const std::string& etag) {
    if (etag.empty() || (response.status != 412 && response.status != 404)) return false;
    const auto there = look_at(key_of(name));
    return there && *there && without_quotes((*there)->etag) == etag;
  }

  /// `wanted`: as it should be, where it is an MD5 or made of some; empty: nobody knows.
  Result<void> check_etag(const std::string& name, const HttpResponse& response, const std::string& etag,
                          const std::string& wanted) const {
    const std::string plain = without_quotes(etag);
    if (wanted.empty() || !is_md5(response) || !looks_like_md5(plain) || plain == wanted) return {};
    return fail(Code::kCorrupt, subject(name), "the server has other bytes than were sent: its ETag is not their MD5");
  }

  /// Where requests go: the bucket in the host or in the path.
  void find_place() {
    const bool path = in_path(settings_, url_.bucket);
    origin_ = settings_.endpoint;
    if (origin_.empty())
      origin_ = fmt::format("https://{}s3.{}.amazonaws.com", path ? "" : url_.bucket + ".", settings_.region);
    else if (const size_t scheme = origin_.find("://"); !path && scheme != std::string::npos)
      origin_.insert(scheme + 3, url_.bucket + ".");
    while (!origin_.empty() && origin_.back() == '/') origin_.pop_back();
    base_ = path ? "/" + url_.bucket : "";
  }

  HttpRequest make(const std::string& method, const std::string& key, const Query& query) {
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

  Result<HttpResponse> send(HttpClient& client, const std::string& method, const std::string& key, const Query& query,
                            const Content& content = {}) {
    auto request = [&]() -> Result<HttpRequest> {
      CKPT_TRY(renew());
      HttpRequest out = make(method, key, query);
      out.headers.insert(out.headers.end(), content.headers.begin(), content.headers.end());
      out.body = content.body, out.awaited = content.awaited;
      return out;
    };
    for (bool moved = false;; moved = true) {
      CKPT_TRY_ASSIGN(HttpResponse response, client.send(request));
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
    CKPT_TRY_ASSIGN(const HttpResponse response, send(*client_, "HEAD", key, {}));
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
    Query query = {{"list-type", "2"}, {"prefix", prefix_}};
    if (!next.empty()) query["continuation-token"] = next;
    CKPT_TRY_ASSIGN(const HttpResponse response, send(*client_, "GET", "", query));
    if (!response.success()) return error(url_.text, response);
    return parse_list(response.body);
  }

  Error error(const std::string& subject, const HttpResponse& response) {
    Error out = http_error(subject, response, parse_s3_error(response.body));
    if (out.code == Code::kPermission && settings_.credentials.anonymous())
      out.hint = "no credentials were found: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (AWS_PROFILE)";
    return out;
  }

  std::atomic<bool> knows_conditions_{true};  ///< the server, until it says otherwise
  std::atomic<Etags> etags_{Etags::kUnknown};
  const Url url_;
  std::mutex mutex_;  ///< of settings_.credentials
  S3Settings settings_;
  std::unique_ptr<HttpClient> client_;
  std::unique_ptr<HttpClient> tidier_;  ///< goes on after a stop was requested
  std::string origin_, base_, prefix_;
};

}  // namespace

Result<std::unique_ptr<WritableBackend>> open_s3(const Url& url, const Cancel* cancel) {
  HttpClient::Options options;
  options.cancel = cancel;
  CKPT_TRY_ASSIGN(auto client, HttpClient::make(options));
  options.cancel = nullptr, options.tidying = true;
  CKPT_TRY_ASSIGN(auto tidier, HttpClient::make(options));
  const bool google = url.scheme == Url::Scheme::kGoogle;
  CKPT_TRY_ASSIGN(S3Settings settings, google ? find_google_settings() : find_s3_settings(true));
  return std::unique_ptr<WritableBackend>(new S3(url, std::move(settings), std::move(client), std::move(tidier)));
}

}  // namespace ckpt::remote
