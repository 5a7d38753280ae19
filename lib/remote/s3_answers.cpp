#include "lib/remote/s3_answers.h"

#include <expat.h>
#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <memory>

namespace ckpt::remote {

namespace {

constexpr size_t kMaxDepth = 16, kMaxText = 1 << 16;

/// Calls back with the path of names ("ListBucketResult/Contents/Key") and the text of each element that ends. Entities
/// of the document's own are not expanded: without a document type there are none.
class Elements {
 public:
  using Each = std::function<void(const std::string& path, const std::string& text)>;
  explicit Elements(Each each) : each_(std::move(each)) {}

  bool parse(const std::string& xml) {
    std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr), XML_ParserFree);
    if (!parser) return false;
    parser_ = parser.get();
    XML_SetUserData(parser_, this);
    XML_SetElementHandler(parser_, &Elements::begin, &Elements::end);
    XML_SetCharacterDataHandler(parser_, &Elements::characters);
    XML_SetStartDoctypeDeclHandler(parser_, &Elements::refuse);
    return XML_Parse(parser_, xml.data(), static_cast<int>(xml.size()), XML_TRUE) == XML_STATUS_OK;
  }

 private:
  static void begin(void* self, const char* name, const char**) {
    auto& e = *static_cast<Elements*>(self);
    const std::string_view full(name);
    e.path_ += (e.path_.empty() ? "" : "/") + std::string(full.substr(full.rfind(':') + 1));
    e.text_.clear();
    if (++e.depth_ > kMaxDepth) XML_StopParser(e.parser_, XML_FALSE);
  }
  static void end(void* self, const char*) {
    auto& e = *static_cast<Elements*>(self);
    e.each_(e.path_, e.text_);
    e.path_.erase(e.path_.rfind('/') == std::string::npos ? 0 : e.path_.rfind('/'));
    e.text_.clear();
    --e.depth_;
  }
  static void characters(void* self, const char* text, int size) {
    auto& e = *static_cast<Elements*>(self);
    e.text_.append(text, static_cast<size_t>(size));
    if (e.text_.size() > kMaxText) XML_StopParser(e.parser_, XML_FALSE);
  }
  static void refuse(void* self, const char*, const char*, const char*, int) {
    XML_StopParser(static_cast<Elements*>(self)->parser_, XML_FALSE);
  }

  Each each_;
  XML_Parser parser_ = nullptr;
  std::string path_, text_;
  size_t depth_ = 0;
};

}  // namespace

Result<S3Page> parse_list(const std::string& xml) {
  S3Page out;
  Object object;
  bool truncated = false, listed = false, numbers = true;
  Elements elements([&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") object.name = text;
    // Some servers leave the quotes out here, and have them in the header.
    if (path == "ListBucketResult/Contents/ETag")
      object.etag = text.find('"') == std::string::npos ? '"' + text + '"' : text;
    if (path == "ListBucketResult/Contents/Size") {
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), object.size);
      numbers &= error == std::errc() && end == text.data() + text.size();
    }
    if (path == "ListBucketResult/Contents") out.objects.push_back(std::exchange(object, Object()));
    if (path == "ListBucketResult/IsTruncated") truncated = text == "true";
    if (path == "ListBucketResult/NextContinuationToken") out.next = text;
    if (path == "ListBucketResult") listed = true;
  });
  if (!elements.parse(xml) || !listed || !numbers)
    return fail(Code::kCorrupt, "", "the server's list of objects is damaged");
  if (!truncated)
    out.next.clear();
  else if (out.next.empty())
    return fail(Code::kCorrupt, "", "the server's list of objects does not go on");
  return out;
}

Result<std::string> parse_upload_id(const std::string& xml) {
  std::string id;
  Elements elements([&](const std::string& path, const std::string& text) {
    // Servers differ in the name of what is around it.
    if (path.starts_with("InitiateMultipartUpload") && path.ends_with("/UploadId")) id = text;
  });
  if (!elements.parse(xml) || id.empty()) return fail(Code::kCorrupt, "", "the server begins an upload without a name");
  return id;
}

Result<std::string> parse_completed(const std::string& xml) {
  std::string etag;
  bool completed = false;
  Elements elements([&](const std::string& path, const std::string& text) {
    if (path == "CompleteMultipartUploadResult/ETag") etag = text;
    if (path == "CompleteMultipartUploadResult") completed = true;
  });
  if (!elements.parse(xml) || !completed)
    return fail(Code::kCorrupt, "", "the server does not say that an upload is complete");
  return etag;
}

Result<S3Parts> parse_parts(const std::string& xml, unsigned after) {
  S3Parts out;
  std::string number, etag;
  bool truncated = false, listed = false, in_order = true;
  Elements elements([&](const std::string& path, const std::string& text) {
    if (!path.starts_with("ListParts")) return;  // servers differ in the rest of that name
    if (path.ends_with("/Part/PartNumber")) number = text;
    if (path.ends_with("/Part/ETag")) etag = text;
    if (path.ends_with("/Part")) {
      out.etags.push_back(std::exchange(etag, {}));
      in_order &= number == std::to_string(after + out.etags.size());
    }
    if (path.ends_with("/IsTruncated")) truncated = text == "true";
    listed = true;
  });
  if (!elements.parse(xml) || !listed || !in_order || (truncated && out.etags.empty()))
    return fail(Code::kCorrupt, "", "the server's list of an upload's parts is damaged, or lacks some");
  if (truncated) out.next = after + static_cast<unsigned>(out.etags.size());
  return out;
}

std::string completion_document(std::span<const std::string> etags) {
  std::string out = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    std::string quoted;
    for (const char c : etags[i])
      quoted += c == '"' ? "&quot;" : c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
    out += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, quoted);
  }
  return out + "</CompleteMultipartUpload>";
}

std::string parse_s3_error(const std::string& xml) {
  std::string code, message;
  Elements elements([&](const std::string& path, const std::string& text) {
    if (path == "Error/Code") code = text;
    if (path == "Error/Message") message = text;
  });
  if (!elements.parse(xml)) return "";
  return message.empty() ? code : code + ": " + message;
}

}  // namespace ckpt::remote
