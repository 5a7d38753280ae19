#include "lib/remote/http_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lib/remote/http.h"
#include "lib/remote/http_listing.h"

namespace ckpt::remote {

namespace {

constexpr size_t kMaxFolders = 1000;
/// What is looked for where the server lists nothing: an index names the files, else one file has all of it.
constexpr const char* kIndexNames[] = {"model.safetensors.index.json", "pytorch_model.bin.index.json",
                                       "diffusion_pytorch_model.safetensors.index.json"};
constexpr const char* kFileNames[] = {"model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors",
                                      "config.json"};

class Http final : public Backend {
 public:
  Http(const Url& url, std::unique_ptr<HttpClient> client)
      : url_(url), client_(std::move(client)), folder_(url.path + (url.path.back() == '/' ? "" : "/")) {}

  Result<std::vector<Object>> list(size_t limit) override {
    const bool folder = url_.query.empty() && url_.path.back() == '/';
    if (!folder) {
      CKPT_TRY_ASSIGN(std::optional<Object> single, look_at(url_.path, ""));
      if (single) return std::vector<Object>{std::move(*single)};
      if (!url_.query.empty()) return fail(Code::kNotFound, url_.text, "the server has no such file");
    }
    std::vector<Object> out;
    CKPT_TRY(list_repository(out));
    if (out.empty()) CKPT_TRY(list_pages(limit, out));
    if (out.empty()) CKPT_TRY(list_known(out));
    if (out.size() > limit) return fail(Code::kUsage, url_.text, fmt::format("has more than {} files below it", limit));
    if (out.empty())
      return Error(Code::kNotFound, url_.text, "the server has no such file, and lists none below it")
          .with_hint(
              "a folder is read where its server lists it (autoindex), or where it holds model.safetensors.index.json");
    std::sort(out.begin(), out.end(), [](const Object& a, const Object& b) { return a.name < b.name; });
    return out;
  }

  Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) override {
    RangeRead read;
    read.subject = object.name.empty() ? url_.text : object.name;
    read.size = object.size, read.etag = object.etag, read.offset = offset, read.out = out;
    const std::string path = object.name.empty() ? url_.path : folder_ + percent_encode(object.name, true);
    read.make_request = [&](const std::string& range) -> Result<HttpRequest> {
      HttpRequest request = make("GET", path);
      request.headers.push_back(range);
      const bool strong = !object.etag.empty() && !object.etag.starts_with("W/");
      if (strong) request.headers.push_back("If-Match: " + object.etag);
      return request;
    };
    read.error = [&](const HttpResponse& response) { return http_error(read.subject, response); };
    return read_range(*client_, read);
  }

 private:
  HttpRequest make(const std::string& method, const std::string& path) const {
    HttpRequest request;
    request.method = method;
    request.url = url_.origin + path + (url_.query.empty() ? "" : "?" + url_.query);
    // The token of a user of the hub goes to the hub alone.
    const char *hub = std::getenv("HF_ENDPOINT"), *token = std::getenv("HF_TOKEN");
    if (token != nullptr && hub != nullptr && url_.origin == hub)
      request.headers.push_back(std::string("Authorization: Bearer ") + token);
    return request;
  }

  Result<HttpResponse> send(const std::string& method, const std::string& path) {
    return client_->send([&] { return Result<HttpRequest>(make(method, path)); });
  }

  /// Servers lead from a folder's name to that with a slash behind it.
  static bool is_folder(const HttpResponse& response, const std::string& path) {
    const std::string& there = response.redirected;
    return !path.ends_with('/') && std::string_view(there).substr(0, there.find('?')).ends_with('/');
  }

  /// Size and version of a file; nothing: there is none.
  Result<std::optional<Object>> look_at(const std::string& path, const std::string& name) {
    CKPT_TRY_ASSIGN(HttpResponse response, send("HEAD", path));
    if (response.status == 404 || response.status == 410 || is_folder(response, path)) return std::optional<Object>();
    Object out;
    out.name = name;
    if (response.success() && !response.header("content-length").empty()) {
      out.size = std::strtoull(response.header("content-length").c_str(), nullptr, 10);
      out.etag = response.header("etag");
      return std::optional<Object>(std::move(out));
    }
    // URLs that were signed for GET refuse HEAD; some servers do not know a size before they send.
    HttpRequest request = make("GET", path);
    request.headers.push_back("Range: bytes=0-0");
    auto stop = [](const HttpResponse& head, ByteSpan) { return head.status == 206; };
    CKPT_TRY_ASSIGN(response, client_->send([&] { return Result<HttpRequest>(request); }, stop));
    if (response.status == 404 || response.status == 410) return std::optional<Object>();
    if (!response.success()) return http_error(name.empty() ? url_.text : name, response);
    const std::string& range = response.header("content-range");
    const std::string size = response.status == 206 && range.find('/') != std::string::npos
                                 ? range.substr(range.find('/') + 1)
                                 : response.header("content-length");
    if (size.empty() || size == "*") return fail(Code::kUnsupported, url_.text, "the server does not tell its size");
    out.size = std::strtoull(size.c_str(), nullptr, 10);
    out.etag = response.header("etag");
    return std::optional<Object>(std::move(out));
  }

  Result<void> list_repository(std::vector<Object>& out) {
    const auto query = repository_query(url_.path);
    if (!query) return {};
    auto answer = client_->send([&] {
      HttpRequest request = make("GET", "");
      request.url = url_.origin + *query;
      return Result<HttpRequest>(request);
    });
    if (!answer || !answer->success()) return {};
    const auto files = parse_repository(answer->body);
    if (!files) return {};
    // Paths count from the top of the repository, the URL may begin further down.
    const std::string inside = folder_.substr(folder_.find("/resolve/") + std::string_view("/resolve/").size());
    const std::string below = percent_decode(inside.substr(inside.find('/') + 1));
    for (const ListedFile& file : *files) {
      if (file.path.starts_with(below)) out.push_back({file.path.substr(below.size()), file.size, ""});
    }
    return {};
  }

  Result<void> list_known(std::vector<Object>& out) {
    for (const char* name : kIndexNames) {
      CKPT_TRY_ASSIGN(const HttpResponse index, send("GET", folder_ + name));
      if (!index.success()) continue;
      std::vector<std::string> names = parse_weight_map(index.body);
      if (names.empty()) continue;
      names.push_back(name);
      for (const std::string& file : names) CKPT_TRY(add(file, out));
      return {};
    }
    for (const char* name : kFileNames) CKPT_TRY(add(name, out));
    if (std::all_of(out.begin(), out.end(), [](const Object& o) { return o.name == "config.json"; })) out.clear();
    return {};
  }

  Result<void> add(const std::string& name, std::vector<Object>& out) {
    CKPT_TRY_ASSIGN(std::optional<Object> found, look_at(folder_ + percent_encode(name, true), name));
    if (found) out.push_back(std::move(*found));
    return {};
  }

  /// nginx and Apache do not list what begins with a dot: the metadata of torch_dist and dcp, and zarr's of an array.
  Result<void> add_hidden(const std::string& folder, const std::vector<ListedName>& listed, std::vector<Object>& out) {
    if (std::any_of(listed.begin(), listed.end(), [](const ListedName& e) { return e.name[0] == '.'; })) return {};
    if (folder.empty()) return add(".metadata", out);
    const bool chunks = std::all_of(listed.begin(), listed.end(), [](const ListedName& e) {
      return e.name.find_first_not_of("0123456789.") == std::string::npos;
    });
    return chunks ? add(folder + ".zarray", out) : Result<void>();
  }

  Result<void> list_pages(size_t limit, std::vector<Object>& out) {
    std::vector<std::string> open = {""};
    for (size_t at = 0; at < open.size() && out.size() <= limit; ++at) {
      if (open.size() > kMaxFolders)
        return fail(Code::kUsage, url_.text, fmt::format("has more than {} folders", kMaxFolders));
      const std::string folder = open[at];
      CKPT_TRY_ASSIGN(const HttpResponse page, send("GET", folder_ + percent_encode(folder, true)));
      if (!page.success()) {
        // What lies in a folder that cannot be listed would be missing without a word; at the top a server may list
        // nothing.
        if (page.status == 404 || (at == 0 && page.status == 403)) continue;
        return http_error(url_.origin + folder_ + folder, page);
      }
      const std::vector<ListedName> entries = parse_index(page.body);
      for (const ListedName& entry : entries) {
        if (entry.folder)
          open.push_back(folder + entry.name + "/");
        else if (entry.size)
          out.push_back({folder + entry.name, *entry.size, ""});
        else
          CKPT_TRY(add(folder + entry.name, out));
      }
      if (!entries.empty()) CKPT_TRY(add_hidden(folder, entries, out));
    }
    return {};
  }

  const Url url_;
  std::unique_ptr<HttpClient> client_;
  const std::string folder_;  ///< path of the folder, with its slash
};

}  // namespace

Result<std::unique_ptr<Backend>> open_http(const Url& url, const Cancel* cancel) {
  HttpClient::Options options;
  options.cancel = cancel, options.follow = true, options.use_netrc = true;
  CKPT_TRY_ASSIGN(auto client, HttpClient::make(options));
  return std::unique_ptr<Backend>(new Http(url, std::move(client)));
}

}  // namespace ckpt::remote
