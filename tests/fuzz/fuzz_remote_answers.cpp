// What a server, or the files of whoever goes there, may say: XML of S3, pages and JSON of HTTP servers, URLs,
// profiles, journals of uploads. What is accepted keeps to its bounds, and what is written again stays as it was.
#include <cstdint>
#include <cstdlib>

#include "lib/remote/credentials.h"
#include "lib/remote/http_listing.h"
#include "lib/remote/md5.h"
#include "lib/remote/pacer.h"
#include "lib/remote/s3_answers.h"
#include "lib/remote/upload_journal.h"
#include "lib/remote/url.h"

using namespace ckpt;
using namespace ckpt::remote;

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

void uploads(const std::string& text) {
  if (auto id = parse_upload_id(text)) check(!id->empty());
  (void)parse_completed(text).has_value();
  constexpr unsigned kAfter = 2;
  for (const unsigned after : {0u, kAfter}) {
    auto parts = parse_parts(text, after);
    if (!parts) continue;
    check(parts->next == 0 || parts->next == after + parts->etags.size());
    (void)etag_of_parts(parts->etags);
    check(!completion_document(parts->etags).empty());
  }
  (void)parse_s3_error(text);
}

void pages(const std::string& text) {
  for (const ListedName& entry : parse_index(text))
    check(!entry.name.empty() && entry.name != "." && entry.name != ".." && entry.name.find('/') == std::string::npos);
  (void)parse_repository(text);
  for (const std::string& name : parse_weight_map(text)) (void)percent_encode(name, true);
}

void url(const std::string& text) {
  if (auto parsed = parse_url(text)) {
    check(parsed->text == text);
    (void)parsed->name();
  }
  check(last_part(text) <= text.size());
  check(lies_within(text, text) || text.find_first_not_of('/') == std::string::npos);
  check(percent_decode(percent_encode(text, true)) == text);
  (void)repository_query(text);
  (void)parse_bandwidth(text).has_value();
}

void journal(const std::string& text) {
  auto read = parse_upload_journal(text, "");
  if (!read) return;
  const std::string again = to_json(*read);
  auto back = parse_upload_journal(again, "");
  check(back && to_json(*back) == again);
}

}  // namespace

/// The first byte says what it is.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 6) {
    case 0: (void)parse_list(text).has_value(); break;
    case 1: uploads(text); break;
    case 2: pages(text); break;
    case 3: url(text); break;
    case 4: journal(text); break;
    default:
      for (const char* section : {"default", "profile p"}) (void)parse_profile(text, section);
  }
  return 0;
}
